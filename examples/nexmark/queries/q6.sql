-- Average selling price by seller: of the last ten of a seller's auctions that closed with a bid.
SELECT seller, avg(final) AS price
FROM (
    SELECT seller, final, row_number() OVER (PARTITION BY seller ORDER BY expires DESC, id DESC) AS place
    FROM (
        SELECT auction.id, auction.seller, auction.expires, max(bid.price) AS final
        FROM auction JOIN bid ON auction.id = bid.auction
        WHERE bid.date_time BETWEEN auction.date_time AND auction.expires
        GROUP BY auction.id, auction.seller, auction.expires
    )
)
WHERE place <= 10
GROUP BY seller
