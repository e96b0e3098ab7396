"""The receiving side: channels, which senders may use them, and clients of their services."""
