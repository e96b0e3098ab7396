"""The data source, written to: what tasks write into channels, and what the driver publishes of it."""
