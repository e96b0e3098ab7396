-- Hot items: of the last ten seconds, every two seconds, the auctions with the most bids; where several have, all of them.
WITH bids AS (
    SELECT auction, window_start, window_start + INTERVAL 10 SECONDS AS window_end, count(*) AS num
    FROM (
        SELECT auction, time_bucket(INTERVAL 2 SECONDS, date_time) - to_seconds(2 * back) AS window_start
        FROM bid, range(5) AS earlier(back)
    )
    GROUP BY auction, window_start
)
SELECT window_start, window_end, num, auction FROM bids
WHERE num >= (SELECT max(num) FROM bids AS others WHERE others.window_start = bids.window_start)
