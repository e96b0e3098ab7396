"""Keys as numbers: codes of texts that come again, hashes of rows, and where among sorted ones a hash lies."""
