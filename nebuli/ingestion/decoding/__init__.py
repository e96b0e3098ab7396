"""From the bytes of messages to rows."""
