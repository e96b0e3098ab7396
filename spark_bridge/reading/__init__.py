"""The data source, read: what the driver plans of channels that are kept, and what tasks read of them."""
