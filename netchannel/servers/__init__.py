"""The asyncio faces: `SenderServer`, `ReceiverServer`, `ChannelReader`, and their channels."""
