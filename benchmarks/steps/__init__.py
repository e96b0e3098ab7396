"""What circuits in steps take: each row's functions, and the rows."""
