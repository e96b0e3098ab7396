-- Currency conversion: every bid in euros.
INSERT INTO q1
SELECT auction, bidder, 0.908::DOUBLE * price AS price, date_time FROM bid
