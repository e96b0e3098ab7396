"""What commands have for queries in steps."""
