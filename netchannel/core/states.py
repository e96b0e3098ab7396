"""The life of a channel, on each side, as tables of transitions. docs/protocol/wire.md is drawn from them.

A pair that is not in a table is a bug of this package, or a peer that breaks the protocol; the callers decide which
before they ask. Terminal states have no way out.
"""

from __future__ import annotations

from enum import StrEnum


class SenderState(StrEnum):
    """The state of a sender's channel."""

    REGISTERED = "registered"  # no request is out: no control connection, or it was just lost
    REQUESTED = "requested"  # the receiver was asked and has not answered
    DENIED = "denied"  # the receiver refused; it notifies us when that changes, and we ask again
    GRANTED = "granted"  # a token is held, the data connection is being made
    ATTACHED = "attached"  # data flows
    ENDED = "ended"  # the end, or the abort, was acknowledged
    CLOSED_BY_PEER = "closed by peer"  # the consumer wants no more
    BROKEN = "broken"  # given up
    DETACHED = "detached"  # left to a successor


class SenderEvent(StrEnum):
    """An event of a sender's channel."""

    OPEN = "open"  # an open request goes out
    DENY = "deny"
    OK = "ok"
    ELSEWHERE = "elsewhere"  # another process of the node has the channel, and is asked in its turn
    ATTACHED = "attached"  # the receiver took the token
    DATA_LOST = "data lost"  # the data connection failed or was refused
    CONTROL_LOST = "control lost"
    FINISHED = "finished"  # the receiver has the end
    PEER_CLOSED = "peer closed"
    GIVE_UP = "give up"  # policy, permanent refusal, or the server is left
    DETACH = "detach"


class ReceiverState(StrEnum):
    """The state of a receiver's channel."""

    REGISTERED = "registered"  # no sender is attached
    ATTACHED = "attached"  # data flows
    ENDED = "ended"  # clean end, all acknowledged
    FAILED = "failed"  # the producer aborted
    CLOSED = "closed"  # the consumer wants no more
    BROKEN = "broken"  # given up
    DETACHED = "detached"  # left to a successor


class ReceiverEvent(StrEnum):
    """An event of a receiver's channel."""

    ATTACH = "attach"  # a token was presented
    LOST = "lost"  # the data connection, or the sender's control connection, is gone
    FINISH = "finish"  # the end is here and everything is acknowledged
    FAIL = "fail"  # the producer's abort is here
    CLOSE = "close"
    GIVE_UP = "give up"
    DETACH = "detach"


S, E = SenderState, SenderEvent
SENDER_TERMINAL = frozenset({S.ENDED, S.CLOSED_BY_PEER, S.BROKEN, S.DETACHED})
SENDER_TABLE: dict[tuple[SenderState, SenderEvent], SenderState] = {
    (S.REGISTERED, E.OPEN): S.REQUESTED,
    (S.DENIED, E.OPEN): S.REQUESTED,
    (S.REQUESTED, E.DENY): S.DENIED,
    (S.REQUESTED, E.OK): S.GRANTED,
    (S.REQUESTED, E.ELSEWHERE): S.REGISTERED,
    (S.GRANTED, E.ATTACHED): S.ATTACHED,
    (S.GRANTED, E.DATA_LOST): S.REGISTERED,
    (S.ATTACHED, E.DATA_LOST): S.REGISTERED,
    (S.REQUESTED, E.CONTROL_LOST): S.REGISTERED,
    (S.DENIED, E.CONTROL_LOST): S.REGISTERED,
    (S.GRANTED, E.CONTROL_LOST): S.REGISTERED,
    (S.ATTACHED, E.CONTROL_LOST): S.REGISTERED,
    (S.REQUESTED, E.FINISHED): S.ENDED,
    (S.GRANTED, E.FINISHED): S.ENDED,  # it finished between the token and its use
    (S.ATTACHED, E.FINISHED): S.ENDED,
    (S.GRANTED, E.PEER_CLOSED): S.CLOSED_BY_PEER,
    (S.REQUESTED, E.PEER_CLOSED): S.CLOSED_BY_PEER,
    (S.ATTACHED, E.PEER_CLOSED): S.CLOSED_BY_PEER,
    **{(state, E.GIVE_UP): S.BROKEN for state in S if state not in SENDER_TERMINAL},
    **{(state, E.DETACH): S.DETACHED for state in S if state not in SENDER_TERMINAL},
}

R, V = ReceiverState, ReceiverEvent
RECEIVER_TERMINAL = frozenset({R.ENDED, R.FAILED, R.CLOSED, R.BROKEN, R.DETACHED})
RECEIVER_TABLE: dict[tuple[ReceiverState, ReceiverEvent], ReceiverState] = {
    (R.REGISTERED, V.ATTACH): R.ATTACHED,
    (R.ATTACHED, V.ATTACH): R.ATTACHED,  # its sender has come by a newer connection: the older one is closed
    (R.ATTACHED, V.LOST): R.REGISTERED,
    (R.REGISTERED, V.FINISH): R.ENDED,  # the last acknowledgement came while the sender was away
    (R.ATTACHED, V.FINISH): R.ENDED,
    (R.ATTACHED, V.FAIL): R.FAILED,
    **{(state, V.CLOSE): R.CLOSED for state in R if state not in RECEIVER_TERMINAL},
    **{(state, V.GIVE_UP): R.BROKEN for state in R if state not in RECEIVER_TERMINAL},
    **{(state, V.DETACH): R.DETACHED for state in R if state not in RECEIVER_TERMINAL},
}
