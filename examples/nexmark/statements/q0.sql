-- Every bid, as it is: what it takes to read and to write.
INSERT INTO q0
SELECT auction, bidder, price, channel, url, date_time FROM bid
