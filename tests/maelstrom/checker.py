"""Whether a history of list-append transactions is strictly serializable, found as Elle does.

Elements are unique, so a read shows which transactions came before it, and in which order (Kingsbury and Alvaro, Elle:
Inferring Isolation Anomalies from Experimental Observations, VLDB 2020; the names of anomalies are Adya's, Generalized
Isolation Level Definitions, ICDE 2000). What cannot be is found in two ways: in single reads, here, and as cycles of
what must have come before what (`dependencies`). Nothing is reported of a history that has a serial order.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from .anomalies import Anomaly
from .dependencies import cycles
from .history import Append, Read, Transaction, shown


def check(history: Sequence[Transaction]) -> list[Anomaly]:
    """All that a strictly serializable store would not have done. Raises ValueError if elements are not unique."""
    writers = _writers(history)
    found = [*_single_reads(history, writers), *_orders(history)]
    if found:
        return found  # without an order of versions there are no dependencies
    orders = {key: longest.elements for key, longest in _longest(history).items()}
    found += _lost(history, orders)
    return found + cycles(history, orders, writers)


def _writers(history: Sequence[Transaction]) -> dict[Append, Transaction]:
    """Who has appended what."""
    writers: dict[Append, Transaction] = {}
    for transaction in history:
        for append in transaction.appends():
            if writers.setdefault(append, transaction) is not transaction:
                raise ValueError(f"{transaction} and {writers[append]} append the same element")
        if len(set(transaction.appends())) < len(transaction.appends()):
            raise ValueError(f"{transaction} appends an element twice")
    return writers


def _single_reads(history: Sequence[Transaction], writers: Mapping[Append, Transaction]) -> Iterator[Anomaly]:
    for transaction in history:
        yield from _internal(transaction)
        for read, elements in transaction.reads():
            twice = sorted(element for element, times in Counter(elements).items() if times > 1)
            if twice:
                yield Anomaly(
                    "duplicate element", f"{transaction} has read {shown(twice)} in {read.key} twice"
                )
            yield from _dirty(transaction, read.key, elements, writers)


def _internal(transaction: Transaction) -> Iterator[Anomaly]:
    """A transaction that does not see what it has seen or done itself."""
    known: dict[int, tuple[int, ...]] = {}  # as read, and appended to since
    appended: dict[int, tuple[int, ...]] = defaultdict(tuple)  # where nothing was read before
    reads = dict(transaction.reads())
    for each in transaction.operations:
        if isinstance(each, Append):
            if each.key in known:
                known[each.key] += (each.element,)
            appended[each.key] += (each.element,)
        elif (elements := reads.get(each)) is not None:
            own = appended[each.key]
            expected = known.get(each.key)
            if expected is not None and elements != expected:
                yield Anomaly("internal", f"{transaction} should have read {each.key} {shown(expected)}")
            elif own and elements[-len(own) :] != own:
                yield Anomaly(
                    "internal", f"{transaction} should have read {shown(own)} at the end of {each.key}"
                )
            known[each.key] = elements


def _dirty(
    transaction: Transaction, key: int, elements: tuple[int, ...], writers: Mapping[Append, Transaction]
) -> Iterator[Anomaly]:
    for element in elements:
        writer = writers.get(Append(key, element))
        if writer is None:
            yield Anomaly("garbage", f"{transaction} has read {element}, which nobody has appended")
        elif writer.outcome == "fail":
            yield Anomaly("G1a, aborted read", f"{transaction} has read {element} of {writer}, which failed")
    last = writers.get(Append(key, elements[-1])) if elements else None
    if last is None or last is transaction:
        return
    final = [each for each in last.appends() if each.key == key][-1]
    if final.element != elements[-1]:
        yield Anomaly("G1b, intermediate read", f"{transaction} has read {last} in the middle")


@dataclass(frozen=True, slots=True)
class _Longest:
    elements: tuple[int, ...]
    reader: Transaction


def _longest(history: Sequence[Transaction]) -> dict[int, _Longest]:
    """Of each key that was read the longest list, which has the order of its versions."""
    found: dict[int, _Longest] = {}
    for transaction in history:
        for read, elements in transaction.reads():
            if read.key not in found or len(elements) > len(found[read.key].elements):
                found[read.key] = _Longest(elements, transaction)
    return found


def _orders(history: Sequence[Transaction]) -> Iterator[Anomaly]:
    """Reads of a key of which none is the beginning of the other."""
    longest = _longest(history)
    for transaction in history:
        for read, elements in transaction.reads():
            other = longest[read.key]
            for place, (one, another) in enumerate(zip(elements, other.elements, strict=False)):
                if one != another:
                    where = f"at place {place} of {read.key}"
                    told = f"{transaction} has read {one} {where}, and {other.reader} has read {another}"
                    yield Anomaly("incompatible order", told)
                    break


def _lost(history: Sequence[Transaction], orders: Mapping[int, tuple[int, ...]]) -> Iterator[Anomaly]:
    """Appends that were acknowledged, and are not in a read that began later."""
    readers: dict[int, list[tuple[Read, Transaction]]] = defaultdict(list)
    for transaction in history:
        for read, _ in transaction.reads():
            readers[read.key].append((read, transaction))
    for transaction in history:
        for append in transaction.appends():
            if transaction.outcome != "ok" or append.element in orders.get(append.key, (append.element,)):
                continue
            for _, reader in readers[append.key]:
                if transaction.ended is not None and transaction.ended < reader.began:
                    yield Anomaly("lost append", f"{transaction} was ok before {reader} began")
                    break
