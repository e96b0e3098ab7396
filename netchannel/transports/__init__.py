"""What moves the bytes of links: TCP and this process' memory, both as asyncio transports."""
