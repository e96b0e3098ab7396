-- Highest bid: of each ten seconds, the bids of the highest price; where several are, all of them.
WITH bids AS (SELECT * FROM TUMBLE(bid, date_time, INTERVAL '10 seconds'))
INSERT INTO q7
SELECT auction, price, bidder, date_time
FROM bids JOIN (SELECT window_start, window_end, max(price) AS price FROM bids GROUP BY ALL) AS highest
USING (window_start, window_end, price)
