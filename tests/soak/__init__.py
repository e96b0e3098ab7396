"""Channels on real connections, under faults that are drawn from a seed, for as long as one likes.

``python -m tests.soak --minutes 10``. A long-lived process has a receiver and a sender, and starts other senders, which
are killed and stopped. In rounds, channels of every policy carry messages through proxies that cut, change and swallow
what they carry; consumers check every message, and in the end nothing is left of all that.
"""
