-- Currency conversion: every bid in euros.
SELECT auction, bidder, 0.908::DOUBLE * price AS price, date_time FROM bid
