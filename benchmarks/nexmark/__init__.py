"""Nexmark's auctions: who they are, what is for sale, what is bid; and two of its queries."""
