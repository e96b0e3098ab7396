"""Durable collections beside Parquet, SQLite and Delta Lake: each row's functions, and the rows."""
