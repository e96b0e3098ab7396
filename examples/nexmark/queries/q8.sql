-- New users: who came within ten seconds, and sold something within the same ones.
SELECT person.id, person.name, person.window_start
FROM (
    SELECT DISTINCT id, name, time_bucket(INTERVAL 10 SECONDS, date_time) AS window_start FROM person
) AS person
JOIN (
    SELECT DISTINCT seller, time_bucket(INTERVAL 10 SECONDS, date_time) AS window_start FROM auction
) AS auction
ON person.id = auction.seller AND person.window_start = auction.window_start
