-- Selection: the bids on some of the auctions.
INSERT INTO q2
SELECT auction, price FROM bid WHERE auction % 123 = 0
