-- Average price for a category: of what each auction went for, which is the highest bid before it closed.
SELECT category, avg(final) AS price
FROM (
    SELECT auction.id, auction.category, max(bid.price) AS final
    FROM auction JOIN bid ON auction.id = bid.auction
    WHERE bid.date_time BETWEEN auction.date_time AND auction.expires
    GROUP BY auction.id, auction.category
)
GROUP BY category
