"""Transports, which move the bytes of links: TCP, Unix sockets, memory, and any that are registered."""

from .interface import Listener, MakeProtocol, Transport
from .schemes import register, unregister
from .sockets import connect_with, listen_on

__all__ = ["Listener", "MakeProtocol", "Transport", "connect_with", "listen_on", "register", "unregister"]
