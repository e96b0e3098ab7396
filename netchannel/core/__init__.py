"""The channel without I/O: bytes, times and wishes in, bytes, deadlines and connections to dial out.

``SenderCore`` and ``ReceiverCore`` are the two sides; adapters give their links to transports.
"""
