"""The sending side: channels, what they keep until it is acknowledged, and their connections."""
