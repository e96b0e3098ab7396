-- Average selling price by seller: of the last ten of a seller's auctions that closed with a bid.
WITH sold AS (
    SELECT auction.id, auction.seller, auction.expires, max(bid.price) AS final
    FROM auction JOIN bid ON auction.id = bid.auction
    WHERE bid.date_time BETWEEN auction.date_time AND auction.expires
    GROUP BY auction.id, auction.seller, auction.expires
)
INSERT INTO q6
SELECT seller, avg(final) AS price
FROM (
    SELECT sold.seller, sold.id, sold.final, count(*) AS place
    FROM sold JOIN sold AS later ON sold.seller = later.seller
    WHERE later.expires > sold.expires OR (later.expires = sold.expires AND later.id >= sold.id)
    GROUP BY ALL
    HAVING count(*) <= 10
)
GROUP BY seller
