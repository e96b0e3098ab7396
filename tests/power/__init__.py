"""A disk that loses what was not synced when its power goes, beneath real processes, which are killed with it.

The disk is a file system in a process of its own, which speaks the kernel's FUSE protocol itself: so it needs neither a
package nor a program, only /dev/fuse and somebody who may mount. Processes on it use netchannel's public API; others,
which go on, know what they were promised.

    fuse, disk, serving             the protocol, what is durable of what is written, the process that has both
    actors, machine                 processes that use the disk, and how tests drive disk and processes
    stories                         what is drawn from a seed, and what all kinds of stories share
    sending, retaining, staging     the kinds: a sender's buffer, a kept stream, staged groups

``python -m tests.power``, or ``make power``.
"""
