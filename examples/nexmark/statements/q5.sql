-- Hot items: of the last ten seconds, every two seconds, the auctions with the most bids; where several have, all of them.
WITH bids AS (
    SELECT auction, window_start, window_end, count(*) AS num
    FROM HOP(bid, date_time, INTERVAL '2 seconds', INTERVAL '10 seconds')
    GROUP BY ALL
)
INSERT INTO q5
SELECT window_start, window_end, num, auction
FROM bids JOIN (SELECT window_start, window_end, max(num) AS num FROM bids GROUP BY ALL) AS most
USING (window_start, window_end, num)
