-- Highest bid: of each ten seconds, the bids of the highest price; where several are, all of them.
SELECT auction, price, bidder, date_time
FROM (
    SELECT *, max(price) OVER (PARTITION BY time_bucket(INTERVAL 10 SECONDS, date_time)) AS highest
    FROM bid
)
WHERE price = highest
