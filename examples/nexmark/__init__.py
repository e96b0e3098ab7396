"""Nexmark's auctions: people, items for sale and bids; and queries q0 to q8 over them."""
