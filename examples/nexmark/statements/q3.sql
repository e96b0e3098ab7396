-- Local item suggestion: what is sold in a category, by whom in three states.
INSERT INTO q3
SELECT person.name, person.city, person.state, auction.id AS auction
FROM auction JOIN person ON auction.seller = person.id
WHERE auction.category = 10 AND person.state IN ('OR', 'ID', 'CA')
