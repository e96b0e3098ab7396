"""Maelstrom's list-append workload over a store's shards, on real processes that are killed and stopped.

``python -m tests.maelstrom --seeds 20``. `node` is a program that speaks Maelstrom's protocol (lines of JSON on stdin
and stdout) and could be given to Maelstrom as it is: several share one store, in which a transaction is an append that
expects the upper it has read up to. `cluster` and `clients` are a small Maelstrom of our own, with faults drawn from a
seed. `checker` finds in what clients were told whether it is strictly serializable: it knows nothing of the store.
"""
