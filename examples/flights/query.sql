-- Delays at departure by the wind at that hour: the query of query.json, as a statement.
INSERT INTO delays
SELECT origin, wind, count(*) AS flights, avg(dep_delay) AS mean_delay, max(dep_delay) AS worst_delay
FROM flights JOIN (
    SELECT origin, time_hour,
           CASE WHEN wind_speed < 8 THEN '00-08 mph' WHEN wind_speed < 16 THEN '08-16 mph'
                WHEN wind_speed < 24 THEN '16-24 mph' ELSE '24+ mph' END AS wind
    FROM weather WHERE wind_speed < 200
) AS measured USING (origin, time_hour)
WHERE dep_delay IS NOT NULL
GROUP BY origin, wind
