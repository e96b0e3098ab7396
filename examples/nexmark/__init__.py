"""Nexmark's auctions: who they are, what is for sale, what is bid; and queries q0 to q8 over them."""
