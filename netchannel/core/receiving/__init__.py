"""The receiving side: channels, who may send on them, and who asks for what they offer."""
