-- New users: who came within ten seconds, and sold something within the same ones.
INSERT INTO q8
SELECT person.id, person.name, person.window_start
FROM (SELECT DISTINCT id, name, window_start, window_end FROM TUMBLE(person, date_time, INTERVAL '10 seconds')) AS person
JOIN (SELECT DISTINCT seller, window_start, window_end FROM TUMBLE(auction, date_time, INTERVAL '10 seconds')) AS auction
ON person.id = auction.seller AND person.window_start = auction.window_start AND person.window_end = auction.window_end
