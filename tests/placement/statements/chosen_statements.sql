SELECT * FROM t
SELECT k, k FROM t
SELECT k, k, K FROM t
SELECT count(*) FROM t
SELECT count(*), count(k), sum(n), avg(x), min(g), max(x) FROM t
SELECT count() FROM t
SELECT k + 1, k*2+n, -k FROM t
SELECT upper(g), g || 'x', length(g) FROM t
SELECT K, G FROM T
SELECT t.K FROM T
SELECT r.k FROM t AS R
SELECT "k", "G" FROM "T"
SELECT k AS a, a + 1 AS b FROM t
SELECT k + 1 AS b FROM t WHERE b > 1
SELECT k + 1 AS b, count(*) FROM t GROUP BY b HAVING b > 1
SELECT g, sum(n) AS s FROM t GROUP BY g HAVING s > 0
SELECT g, sum(n) AS s FROM t GROUP BY 1
SELECT count(*) FROM t GROUP BY g, k
SELECT g FROM t GROUP BY ALL
SELECT g, count(*) FROM t GROUP BY ALL
SELECT 'a' AS a FROM t HAVING 1 < 2
SELECT 'a' AS a FROM t HAVING 1 > 2
SELECT 1 AS one FROM t HAVING count(*) > 2
SELECT count(*) FROM t HAVING count(*) > 100
SELECT sum(n) FROM t WHERE false
SELECT count(*) FILTER (WHERE n > 0), count(DISTINCT g) FILTER (WHERE n > 0), sum(n) FILTER (WHERE k = 1) FROM t
SELECT g, count(*) FILTER (WHERE n > 0) FROM t GROUP BY g
SELECT min(DISTINCT n), max(DISTINCT x) FROM t
SELECT DISTINCT g FROM t
SELECT DISTINCT * FROM t
SELECT DISTINCT x FROM t
SELECT x, count(*) FROM t GROUP BY x
SELECT k FROM t UNION ALL SELECT x FROM u
SELECT k FROM d UNION ALL SELECT k FROM t
SELECT NULL AS a FROM t
SELECT NULL AS a FROM t UNION ALL SELECT g FROM u
SELECT g FROM t UNION ALL SELECT NULL FROM u
SELECT NULL FROM t UNION ALL SELECT NULL FROM u
SELECT day FROM d UNION ALL SELECT ts FROM d
SELECT f FROM d UNION ALL SELECT x FROM t
SELECT k, g FROM t UNION SELECT n, g FROM u
SELECT k FROM t UNION ALL SELECT k FROM t
SELECT k FROM t UNION SELECT k FROM t UNION ALL SELECT n FROM u
(SELECT k FROM t) UNION ALL (SELECT n FROM u WHERE n > 0)
SELECT t.k, d.ts FROM t JOIN d ON t.k = d.k
SELECT t.k, d.k FROM t JOIN d ON t.k = d.k + 1
SELECT * FROM t JOIN d USING (k)
SELECT * FROM t JOIN u USING (k) JOIN d USING (k)
SELECT t.k, u.n, d.ok FROM t JOIN u USING (k) JOIN d USING (k)
SELECT * FROM t JOIN u USING (k, g)
SELECT * FROM t JOIN u ON t.k = u.k
SELECT * FROM (SELECT * FROM t JOIN u ON t.k = u.k) AS s
SELECT k_1 FROM (SELECT * FROM t JOIN u ON t.k = u.k) AS s
SELECT t.*, u.k FROM t JOIN u USING (k)
SELECT * FROM t, u WHERE t.k = u.k
SELECT t.k FROM t, u, d WHERE t.k = u.k AND u.n = d.k AND t.n > 0
SELECT a.k FROM t a, t b WHERE a.k = b.n AND a.n < b.k
SELECT a.k, b.k FROM t a JOIN t b ON a.k = b.k
SELECT * FROM t LEFT JOIN u USING (k)
SELECT k, t.n, u.n FROM t FULL JOIN u USING (k)
SELECT k, t.k, u.k FROM t FULL JOIN u USING (k)
SELECT t.k, u.k FROM t RIGHT JOIN u ON t.k = u.k
SELECT t.x FROM t JOIN u ON t.x = u.x
SELECT t.g FROM t JOIN u ON upper(t.g) = u.g
SELECT a, b FROM (SELECT k, g FROM t) AS s(a, b)
SELECT a, g FROM t AS s(a)
WITH c(a, b) AS (SELECT k, g FROM t) SELECT b, a FROM c
WITH c AS (SELECT k, n FROM t WHERE n > 0) SELECT a.k, b.n FROM c a JOIN c b ON a.k = b.k
WITH c AS (SELECT k FROM t) SELECT k FROM c UNION ALL SELECT k FROM c
WITH c AS (SELECT k, count(*) AS m FROM t GROUP BY k) SELECT c.k FROM c JOIN (SELECT max(m) AS m FROM c) AS z ON c.m = z.m
WITH t AS (SELECT * FROM t WHERE k > 1) SELECT * FROM t
WITH t AS (SELECT k FROM u) SELECT * FROM t
WITH a AS (SELECT k FROM t), b AS (SELECT k + 1 AS k FROM a) SELECT * FROM a JOIN b USING (k)
WITH a AS (SELECT k FROM t) SELECT * FROM (WITH a AS (SELECT n FROM u) SELECT * FROM a) AS s
SELECT * FROM (SELECT k, n FROM t WHERE n > 0) WHERE k > 1
SELECT * FROM (SELECT k, count(*) AS m FROM t GROUP BY k) WHERE k > 1 AND m > 0
SELECT "wind speed", "Order" FROM d
SELECT "wind speed" + 1 AS "a b" FROM d
SELECT order1."Order" FROM d AS order1
SELECT "order" FROM d
SELECT s FROM d WHERE s = 'q"x'
SELECT g FROM t WHERE g = 'it''s'
SELECT 'it''s' AS a, 'é' AS b FROM t
SELECT g FROM t WHERE g LIKE '%''%'
SELECT s FROM d WHERE s LIKE '10\%'
SELECT s FROM d WHERE s LIKE '%c'
SELECT k FROM t WHERE NOT (n > 0)
SELECT k FROM t WHERE n IN (1, 2, NULL)
SELECT k FROM t WHERE n NOT IN (1, 2)
SELECT k FROM t WHERE n NOT IN (1, NULL)
SELECT k FROM t WHERE n BETWEEN -1 AND 1
SELECT k FROM t WHERE n NOT BETWEEN -1 AND 1
SELECT k FROM t WHERE g IS NULL OR n IS NOT NULL
SELECT k FROM t WHERE k IS DISTINCT FROM n
SELECT k FROM t WHERE k IS NOT DISTINCT FROM n
SELECT k = n, k <> n, k != n, k == n FROM t
SELECT x > 0, x = x, x < 'nan'::DOUBLE FROM t
SELECT ok AND k > 0, ok OR k > 0, NOT ok FROM d
SELECT ok FROM d WHERE ok
SELECT k FROM d WHERE ok IS TRUE
SELECT k FROM d WHERE ok IS NOT FALSE
SELECT CASE WHEN k > 1 THEN 'a' WHEN k > 0 THEN 'b' ELSE 'c' END AS c FROM t
SELECT CASE k WHEN 1 THEN 'a' END AS c FROM t
SELECT coalesce(n, k, 0) AS c, nullif(k, 1) AS d, ifnull(k, 2) AS e FROM t
SELECT greatest(k, n) AS a, least(k, n) AS b FROM t
SELECT day, day + 1 AS b, day - 1 AS c FROM d
SELECT day - day AS z FROM d
SELECT ts + INTERVAL 1 DAY AS a, ts - INTERVAL '2' HOURS AS b, ts + INTERVAL '3 minutes' AS c FROM d
SELECT day + INTERVAL 1 DAY AS a FROM d
SELECT extract(year FROM ts) AS a, extract(dow FROM day) AS b, date_part('hour', ts) AS c FROM d
SELECT year(ts) AS a, month(day) AS b FROM d
SELECT date_trunc('month', day) AS m, count(*) FROM d GROUP BY m
SELECT date_trunc('day', ts) AS m FROM d
SELECT k FROM d WHERE day >= DATE '2020-01-01'
SELECT k FROM d WHERE day >= '2020-01-01'
SELECT k FROM d WHERE ts < TIMESTAMP '2020-01-01 00:00:10'
SELECT k FROM d WHERE ts BETWEEN '2019-01-01' AND '2021-01-01'
SELECT k::VARCHAR AS a, CAST(k AS DOUBLE) AS b, CAST(g AS VARCHAR) AS c FROM t
SELECT k::TEXT || '-' || g AS a FROM t
SELECT k / 2 AS a, k // 2 AS b, k % 2 AS c FROM t
SELECT abs(n) AS a, round(x) AS b, floor(x) AS c, ceil(x) AS d, sqrt(k) AS e, power(k, 2) AS f FROM t
SELECT substring(s, 1, 2) AS a, trim(s) AS b, lower(s) AS c, concat(s, '!') AS e, starts_with(s, 'a') AS f, contains(s, 'b') AS h FROM d
SELECT k IN (1, 2) AS a FROM t
SELECT sum(k) + 1 AS a, sum(k + n) AS b, sum(k) / count(*) AS c FROM t
SELECT sum(CASE WHEN n > 0 THEN 1 ELSE 0 END) AS a FROM t
SELECT g, n, sum(k) FROM t GROUP BY g, n
SELECT upper(g) AS u, count(*) FROM t GROUP BY upper(g)
SELECT count(*) AS c FROM t GROUP BY upper(g), n + 1
SELECT g FROM t GROUP BY g HAVING count(*) > 1 AND max(n) > 0
SELECT k % 2 AS p, count(DISTINCT g) AS c FROM t GROUP BY k % 2
SELECT sum(x) FROM t WHERE x = x
SELECT sum(f), avg(f), min(f) FROM d
SELECT count(DISTINCT x), count(DISTINCT k) FROM t
SELECT k FROM t WHERE true
SELECT k FROM t WHERE NULL
FROM t
FROM t SELECT k
FROM t WHERE k > 1
SELECT t.k FROM t INNER JOIN u ON (t.k = u.k AND t.n < u.n)
SELECT t.k FROM t JOIN u ON t.k = u.k WHERE t.n > 0 OR u.n > 0
SELECT t.k FROM t JOIN u ON u.k = t.k AND t.g = 'a'
SELECT s.k, s.c FROM (SELECT k, count(*) AS c FROM t GROUP BY k) AS s JOIN u ON s.k = u.k WHERE s.c > 1
SELECT if(k > 1, 'a', 'b') AS a FROM t
SELECT DISTINCT k + n AS z FROM t
SELECT avg(k), avg(n) FILTER (WHERE g IS NOT NULL) FROM t
SELECT count(*) FROM (SELECT DISTINCT k FROM t)
SELECT count(*) FROM (SELECT k FROM t UNION SELECT k FROM u)
SELECT count(*) * 2 AS a FROM t JOIN u USING (k)
SELECT * FROM (FROM t) AS s
SELECT k AS "select", g AS "from" FROM t
SELECT "select" FROM (SELECT k AS "select" FROM t)
SELECT k "a.b" FROM t
SELECT "a.b" FROM (SELECT k AS "a.b" FROM t)
SELECT s."a.b" + 1 AS z FROM (SELECT k AS "a.b" FROM t) AS s
SELECT k AS "x>y", n AS "q""r" FROM t
SELECT "q""r" FROM (SELECT k AS "q""r" FROM t)
SELECT k AS é FROM t
SELECT ü.k FROM t AS ü
SELECT t.k, t.n AS m FROM t JOIN u ON t.k = u.k JOIN d ON d.k = t.n
SELECT a.k FROM t a JOIN u b ON a.k = b.k JOIN t c ON b.n = c.n WHERE a.g = c.g
SELECT a.k, c.g FROM t a JOIN (SELECT k, max(g) AS g FROM u GROUP BY k) c ON a.k = c.k
SELECT q.k FROM (SELECT k FROM (SELECT k, n FROM t WHERE n > 0) WHERE k > 0) AS q
SELECT * FROM (SELECT k, sum(n) AS s FROM (SELECT k, n FROM t UNION ALL SELECT k, n FROM u) GROUP BY k) WHERE s > 0
WITH a AS (SELECT k, n FROM t), b AS (SELECT k, sum(n) AS s FROM a GROUP BY k) SELECT a.k, b.s FROM a JOIN b ON a.k = b.k
WITH a AS (SELECT k FROM t), b AS (SELECT * FROM a UNION ALL SELECT * FROM a), c AS (SELECT * FROM b UNION ALL SELECT * FROM b) SELECT count(*) FROM c
SELECT count(DISTINCT g), count(DISTINCT upper(g)), count(*) FROM t GROUP BY k
SELECT g, count(*) AS c, sum(c) FROM (SELECT g, 1 AS c FROM t) GROUP BY g
SELECT g, k FROM t GROUP BY 2, 1
SELECT g || 'z' AS z, count(*) FROM t GROUP BY 1 HAVING z > 'a'
SELECT sum(k) FILTER (WHERE g = 'a') - sum(n) AS diff FROM t GROUP BY n % 2
SELECT k, count(*) FROM t WHERE n > 0 GROUP BY k HAVING min(n) < max(n) OR count(*) = 1
SELECT k, g FROM t GROUP BY ALL HAVING count(*) > 1
SELECT DISTINCT k, g FROM t WHERE g <> ''
SELECT DISTINCT count(*) FROM t GROUP BY k
SELECT k FROM t UNION SELECT k FROM u UNION SELECT k FROM d
SELECT k, n FROM t UNION ALL SELECT n, k FROM u UNION ALL SELECT k, "wind speed" FROM d
SELECT "wind speed" AS w FROM d UNION ALL SELECT k FROM d UNION ALL SELECT x FROM t
SELECT * FROM t UNION ALL SELECT * FROM u
SELECT count(*) FROM (SELECT * FROM t UNION ALL SELECT * FROM u) WHERE k > 1
SELECT x FROM (SELECT x FROM t WHERE x > 0 UNION ALL SELECT f FROM d) WHERE x < 1
SELECT t.k FROM t JOIN d ON t.k = d."wind speed"
SELECT t.k FROM t JOIN d ON t.x = d.f
SELECT d.k FROM d JOIN t ON d.f = t.k
SELECT a.k FROM d a JOIN d b ON a.day = b.ts
SELECT t.k FROM t JOIN u ON t.k + 1 = u.n * 2
SELECT t.k FROM t JOIN u ON t.k = u.k AND t.k = u.n
SELECT t.k FROM t JOIN u ON t.k = u.k AND t.n = u.k
SELECT T.k, U.K FROM t JOIN u ON T.K = U.k
SELECT s.K FROM (SELECT k FROM t) AS S
SELECT * FROM t AS a JOIN t AS b USING (k) JOIN t AS c USING (k)
SELECT * FROM t AS a JOIN u AS b USING (k) LEFT JOIN t AS c USING (k)
SELECT k, a.n, b.n, c.n FROM t AS a FULL JOIN u AS b USING (k) FULL JOIN d AS e USING (k) JOIN t AS c USING (k)
SELECT K, a.G FROM t AS a JOIN u AS b USING (K)
SELECT a.k, b.k FROM t AS a JOIN u AS b USING (k)
SELECT a.k, b.k FROM t AS a LEFT JOIN u AS b USING (k)
SELECT * FROM d AS a JOIN t AS b USING (k)
SELECT a.*, b.n FROM t a JOIN u b ON a.k = b.k
SELECT b.*, a.* FROM t a JOIN u b ON a.k = b.k
SELECT *, k + 1 AS l FROM t
SELECT *, * FROM t
SELECT k, * FROM t
SELECT t.*, * FROM t JOIN u USING (k)
SELECT 1 + 2 * 3, 'a' || 'b', 7 // 2, 7 % 4, 7 / 2 FROM t
SELECT CAST('nan' AS DOUBLE) = CAST('nan' AS DOUBLE) AS a FROM t
SELECT max(x), min(x), count(x) FROM t WHERE x IS NOT NULL
SELECT x, count(*) FROM t GROUP BY x HAVING x > 0
SELECT k FROM t WHERE x > 1e10
SELECT greatest(x, 0.5e0), least(x, 0.5e0) FROM t
SELECT x = 0 AS a, x <= 0 AS b FROM t
SELECT CASE WHEN x = 'nan'::DOUBLE THEN 'nan' ELSE 'num' END AS c, count(*) FROM t GROUP BY c
SELECT day, count(*), max(ts) FROM d GROUP BY day
SELECT date_trunc('day', ts) AS z, count(*) FROM d GROUP BY ALL
SELECT CAST(ts AS DATE) AS z, count(*) FROM d GROUP BY z
SELECT ts - INTERVAL 1 HOUR AS z FROM d WHERE ts - INTERVAL 1 HOUR < TIMESTAMP '2020-01-01'
SELECT day FROM d WHERE day BETWEEN DATE '2020-01-01' AND DATE '2020-02-29'
SELECT day FROM d WHERE day = ts
SELECT day + k AS z FROM d
SELECT length(s), length("Order"), upper("Order") FROM d
SELECT s FROM d WHERE s = ''
SELECT s FROM d WHERE s <> '' AND NOT s LIKE '%c'
SELECT s FROM d WHERE s ILIKE 'AB%'
SELECT g FROM t WHERE g > 'é'
SELECT g FROM t WHERE g IN ('a', 'é', 'it''s')
SELECT 'a''b"c\d' AS z FROM t
SELECT '' AS z, ' ' AS y FROM t
SELECT '日本語' AS z, length('日本語') AS y FROM t
SELECT k AS "日本", n AS "a'b", g AS "  " FROM t
SELECT "a'b" FROM (SELECT n AS "a'b" FROM t) WHERE "a'b" > 0
SELECT k AS "Group", count(*) FROM t GROUP BY "Group"
SELECT k AS "1", n AS "2" FROM t
SELECT "1" + "2" AS z FROM (SELECT k AS "1", n AS "2" FROM t)
SELECT k AS K, n AS N FROM t
SELECT z.K FROM (SELECT k AS K, n AS N FROM t) z WHERE z.n > 0
SELECT k FROM d WHERE ok = (k > 1)
SELECT k FROM t WHERE k > 0 AND (n > 0 OR g = 'a') AND NOT (x < 0)
SELECT k FROM t WHERE (k > 0) IS NULL
SELECT k FROM t WHERE NOT (k > 0 AND n > 0)
SELECT k FROM t WHERE coalesce(k > 0, TRUE)
SELECT if(k IS NULL, 'none', CAST(k AS VARCHAR)) AS z FROM t
SELECT avg(k) > 1 AS z FROM t GROUP BY g
SELECT CASE WHEN count(*) > 1 THEN 'many' ELSE 'one' END AS z, k FROM t GROUP BY k
SELECT k, CASE WHEN k > 1 THEN sum(n) ELSE 0 END AS z FROM t GROUP BY k
SELECT max(k) - min(k) AS span, g FROM t GROUP BY g
SELECT round(avg(x), 2) AS z FROM t
SELECT sum("wind speed"), avg("wind speed"), max("wind speed") FROM d
SELECT sum(f) FROM d WHERE f = f
SELECT min(g), max(g) FROM t
SELECT min("Order"), max(s) FROM d GROUP BY ok
SELECT count(*) FROM t, u WHERE t.k = u.k
SELECT count(*) FROM t a, t b, t c WHERE a.k = b.k AND b.n = c.n
SELECT t.k FROM t, u WHERE t.k = u.k AND t.n < u.n AND t.g IS NOT NULL
SELECT t.k FROM t, (SELECT k AS kk FROM u WHERE n > 0) AS v WHERE kk = k
SELECT t.k, u.n FROM t LEFT JOIN u ON t.k = u.k WHERE u.n IS NULL
SELECT t.k, u.n FROM t LEFT JOIN u ON t.k = u.k WHERE t.n > 0 AND u.n > 0
SELECT t.k, u.n FROM t LEFT JOIN u ON t.k = u.k AND t.n = u.n
SELECT count(*) FROM t RIGHT JOIN u ON t.k = u.k
SELECT a.k FROM t a JOIN u b ON a.k = b.k AND a.g LIKE 'a%' AND b.n > 0
SELECT (k) FROM t
SELECT ((k + 1)) FROM t
SELECT (t.k) AS z FROM t
SELECT k FROM (((SELECT k FROM t)))
(SELECT k FROM t)
SELECT k FROM t AS "My T" WHERE "My T".k > 1
SELECT "My T".* FROM t AS "My T"
SELECT "my t".k FROM t AS "My T"
select K from T where N>0
SeLeCt k FrOm t WhErE n > 0
SELECT k FROM t -- comment
SELECT /* hint */ k FROM t
SELECT k FROM t
SELECT k, FROM t
SELECT count(*) AS "count", sum(n) AS sum FROM t
SELECT count FROM (SELECT count(*) AS count FROM t)
SELECT key FROM (SELECT k AS key, k + 1 AS keys FROM t) WHERE keys > 1
SELECT x AS window_start FROM t
SELECT k AS _weight2 FROM t
SELECT t FROM (SELECT k AS t FROM t)
SELECT t.t FROM (SELECT k AS t FROM t) AS t
SELECT n + 1 AS n FROM t WHERE n > 0
SELECT n + 1 AS n FROM t GROUP BY n
SELECT g AS k, k AS g FROM t
SELECT sum(n) AS n FROM t HAVING n > 0
SELECT k AS a, a AS b, b + 1 AS c FROM t
SELECT k + 1 AS k, k + 1 AS l FROM t
SELECT count(*) AS c, c + 1 AS e FROM t
SELECT concat(g, k::VARCHAR) FROM t
SELECT g, sum(n) AS n FROM t GROUP BY g HAVING sum(n) > 0
SELECT k + 1 AS k, count(*) FROM t GROUP BY k HAVING k > 1
SELECT g, max(n) AS n FROM t GROUP BY g HAVING n > 0 AND max(n) < 2
SELECT 1 AS a, count(*) FROM t WHERE k > 100 GROUP BY ALL
SELECT 1 AS a, count(*) FROM t WHERE k > 100 GROUP BY a
SELECT 1 + 1 AS a FROM t GROUP BY ALL
SELECT 'x' AS a, k, count(*) FROM t GROUP BY ALL
SELECT a.k, a.c, b.c FROM (SELECT k, count(*) AS c FROM t GROUP BY k) a LEFT JOIN (SELECT k, count(*) AS c FROM u GROUP BY k) b ON a.k = b.k WHERE b.c IS NULL OR b.c > 1
WITH a AS (SELECT k, g FROM t), b AS (SELECT k, max(g) AS g FROM a GROUP BY k) SELECT x.k, y.g FROM a AS x JOIN b AS y USING (k, g)
WITH a AS (SELECT k, n FROM t UNION ALL SELECT k, n FROM u) SELECT a.k, s FROM a JOIN (SELECT k, sum(n) AS s FROM a GROUP BY k HAVING sum(n) IS NOT NULL) AS b USING (k) WHERE a.n > 0
SELECT k, s FROM (SELECT k, sum(n) AS s FROM t GROUP BY k) WHERE s > 0 AND k IS NOT NULL
SELECT * FROM (SELECT k, n, k + n AS z FROM t) WHERE z > 1 AND k > 0
SELECT z FROM (SELECT k // n AS z FROM t WHERE n <> 0) WHERE z > 0
SELECT z FROM (SELECT CAST(s AS VARCHAR) AS z FROM d) WHERE z LIKE 'a%' OR z IS NULL
SELECT DISTINCT z FROM (SELECT DISTINCT k, n AS z FROM t) WHERE z > 0
SELECT k FROM (SELECT k FROM t UNION SELECT n FROM u) WHERE k > 0 OR k IS NULL
SELECT a.k FROM (SELECT k FROM t WHERE k > 0) a FULL JOIN (SELECT k FROM u WHERE k > 1) b ON a.k = b.k WHERE a.k > 1
SELECT a.k, b.k FROM t a FULL JOIN u b ON a.k = b.k WHERE b.k > 1
SELECT a.k, b.n FROM t a RIGHT JOIN u b ON a.k = b.k WHERE a.n > 0 AND b.n > 0
SELECT a.k FROM t a LEFT JOIN u b ON a.k = b.k LEFT JOIN d c ON b.n = c.k WHERE c.k IS NULL
SELECT count(*), count(b.k), count(c.k) FROM t a LEFT JOIN u b ON a.k = b.k LEFT JOIN d c ON a.k = c.k
SELECT a.g || b.g AS z FROM t a JOIN u b ON a.k = b.k AND a.n = b.n WHERE a.g || b.g <> ''
SELECT g, count(*) FILTER (WHERE k > 1 AND n IS NULL) AS f, sum(k) FILTER (WHERE n > 0) + 1 AS h FROM t GROUP BY g HAVING count(*) FILTER (WHERE k > 0) > 0
SELECT upper(g) AS g, count(*) FROM t GROUP BY g
SELECT k AS g, g AS k FROM t WHERE k > 1
SELECT n AS k, k AS n, sum(n) AS s FROM t GROUP BY n, k
SELECT s1.n FROM (SELECT n AS k, k AS n FROM t) AS s1 JOIN u ON s1.k = u.k
SELECT t.k FROM t JOIN (SELECT n AS k FROM u) AS v USING (k) JOIN (SELECT k FROM d) AS w USING (k)
SELECT k, t.g, v.g FROM t JOIN (SELECT n AS k, g FROM u) AS v USING (k) WHERE v.g = t.g
SELECT * FROM t a JOIN t b USING (k) WHERE a.n < b.n
SELECT a.*, b.* FROM t a JOIN t b ON a.k = b.n
SELECT max(a.n), b.g FROM t a JOIN t b ON a.k = b.k GROUP BY b.g HAVING max(a.n) > min(b.n)
SELECT x, -x AS y, x = -x AS z FROM t GROUP BY x
SELECT DISTINCT x + 0 AS z FROM t
SELECT count(DISTINCT x), min(x), max(x), avg(x) FROM t GROUP BY k
SELECT f, x FROM d JOIN t ON d.f = t.x
SELECT day, ts FROM d WHERE ts >= day
SELECT day FROM d WHERE day + 1 > TIMESTAMP '2020-01-01'
SELECT ts + INTERVAL '1' DAY - INTERVAL 2 HOURS AS z FROM d
SELECT date_trunc('week', day) AS w, count(*) FROM d GROUP BY w HAVING w IS NOT NULL
SELECT ok, NOT ok AS n, ok IS TRUE AS t, ok IS NOT TRUE AS u, coalesce(ok, FALSE) AS c FROM d
SELECT CASE WHEN ok THEN k WHEN NOT ok THEN "wind speed" END AS z FROM d
SELECT CASE ok WHEN TRUE THEN 'y' WHEN FALSE THEN 'n' ELSE '?' END AS z, count(*) FROM d GROUP BY z
SELECT k::SMALLINT AS a, k::TINYINT AS b, k::UINTEGER AS c, x::FLOAT AS e, ok::INTEGER AS f FROM (SELECT t.k, t.x, d.ok FROM t JOIN d USING (k))
SELECT "wind speed" * 100 AS z, "wind speed" / 7 AS y, "wind speed" // 7 AS v, "wind speed" % 7 AS w FROM d
SELECT sum("wind speed") AS "wind speed" FROM d GROUP BY "Order"
SELECT "Order" AS o, "ORDER" AS p FROM d
SELECT d."order" FROM d
SELECT 'k' AS k, count(*) FROM t GROUP BY k
SELECT count(*) AS "count(*)", "count(*)" + 1 AS z FROM t
SELECT k FROM t WHERE g IN ('a', 'b''c') AND k IN (1, 2, 3) AND n NOT IN (5)
SELECT k FROM t WHERE k = 1 OR k = 2 OR (k = 3 AND NOT n = 1) OR k IS NULL
SELECT length(g || g) AS l, sum(length(g)) AS s FROM t GROUP BY l
SELECT min(g) || max(g) AS z FROM t WHERE g <> ''
SELECT k FROM t GROUP BY k, k, 1
SELECT k + 1 AS z, k + 1 AS y FROM t GROUP BY k + 1
SELECT (k + 1) * 2 AS z FROM t GROUP BY k + 1
SELECT k + 1 + count(*) AS z FROM t GROUP BY k + 1
SELECT g FROM t GROUP BY g, n HAVING n > 0
SELECT * FROM (SELECT * FROM (SELECT * FROM t)) AS a JOIN (SELECT * FROM (SELECT * FROM u)) AS b USING (k, n)
WITH a AS (WITH b AS (SELECT k FROM t) SELECT k + 1 AS k FROM b), b AS (SELECT k FROM u) SELECT a.k FROM a JOIN b USING (k)
WITH a AS (SELECT k FROM t), b AS (SELECT a.k FROM a JOIN a AS c USING (k)) SELECT b.k, a.k FROM b JOIN a USING (k)
WITH A AS (SELECT k FROM t) SELECT a.K FROM a
SELECT 1e0 / 0 AS a, -1e0 / 0 AS b, 0e0 / 0 AS c, k / 0 AS e FROM t
SELECT round(x * 10) AS a, round(-x, 1) AS b, floor(x), ceil(-x) FROM t
SELECT greatest(k, n, 1) AS a, least(k, n, NULL) AS b FROM t
SELECT NULL = k AS a, NULL IS NULL AS b, k + NULL AS c FROM t
SELECT substring(g, 1, 0) AS a, substring(g, 2) AS b, trim('  ' || g || ' ') AS c FROM t
SELECT contains(g, '''') AS a, starts_with(g, 'it') AS b, g LIKE '%t''s' AS c FROM t
SELECT TRUE AND NULL AS a, FALSE AND NULL AS b, TRUE OR NULL AS c FROM t
SELECT k BETWEEN n AND 3 AS a, k NOT BETWEEN 3 AND n AS b FROM t
SELECT k % -1 AS m, (-9223372036854775807 - 1) % -1 AS l, n % (0 - 1) AS o FROM t
SELECT CAST(-2147483648 AS INTEGER) % CAST(-1 AS INTEGER) AS m, CAST(k - 128 AS TINYINT) % CAST(-1 AS TINYINT) AS l FROM t WHERE k < 10
SELECT datetrunc('month', ts) AS m FROM d
