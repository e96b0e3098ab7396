"""The answers of workers, judged: each function gives one line. No clock is read here, and no worker is asked."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nebuli.rpc import worker_pb2 as wire
    from topology import LinkLimits

__all__ = ["Check", "certificate", "channel", "clock", "congestion", "files", "limits", "private", "version"]


@dataclass(frozen=True, slots=True)
class Check:
    """A subject and its finding. ``remedy`` is empty if all is well.

    ``unreachable``: a process does not answer. ``values`` are the numbers in the sentence, with their units in
    their names.
    """

    subject: str
    name: str
    found: str
    remedy: str = ""
    unreachable: bool = False
    values: Mapping[str, float | str] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """True if there is nothing to do."""
        return not self.remedy

    def to_data(self) -> dict[str, Any]:
        """The check as JSON shows it."""
        return {"ok": self.ok, **asdict(self), "values": dict(self.values)}


SKEW_S = 1.0
"""Lines of logs are put in order by the clocks of their workers: above this, causes come after their effects."""
SOON_S = 7 * 86400.0
FILES_FREE = 256
"""A channel takes a descriptor at either end, a peer another."""
_LOCAL = "cubic"
"""The default of channels within a host, if the system has it."""
_FOR_HOSTS = (_LOCAL, "reno")


def version(subject: str, theirs: str, python: str, ours: str) -> Check:
    """Check that a worker and this command are of one version."""
    if theirs == ours:
        return Check(subject, "version", f"nebuli {theirs}, Python {python}")
    return Check(
        subject,
        "version",
        f"nebuli {theirs}, but {ours} on this machine",
        f"install one version everywhere: pip install nebuli=={ours}, and restart the worker",
    )


def clock(subject: str, skew_s: float, uncertain_s: float) -> Check:
    """How far a worker's clock is ahead of this one; ``uncertain_s`` is what asking may have added."""
    values = {"skew_s": round(skew_s, 6), "uncertain_s": round(uncertain_s, 6)}
    where = "ahead of" if skew_s > 0 else "behind"
    found = (
        f"{abs(skew_s) * 1e3:.1f} ms {where} the clock of this machine, give or take "
        f"{uncertain_s * 1e3:.1f} ms"
    )
    if abs(skew_s) <= SKEW_S + uncertain_s:
        return Check(subject, "clock", found, values=values)
    remedy = (
        f"set both clocks by NTP (chronyc tracking, timedatectl): {SKEW_S:.0f} s of difference are allowed"
    )
    return Check(subject, "clock", found, remedy, values=values)


def files(subject: str, used: int, limit: int) -> Check:
    """Check that a worker may open enough files."""
    found = f"{used} of {limit} descriptors are used"
    values = {"used": used, "limit": limit}
    if limit - used >= FILES_FREE:
        return Check(subject, "descriptors", found, values=values)
    return Check(
        subject,
        "descriptors",
        found,
        "start the worker with a higher limit (ulimit -n 65536; systemd: LimitNOFILE=65536): each channel "
        f"takes a descriptor, and {FILES_FREE} should be free",
        values=values,
    )


def congestion(subject: str, default: str, available: list[str]) -> Check:
    """Check that channels within the worker's host get a congestion control that costs nothing there."""
    if not default:
        return Check(subject, "congestion control", "this system does not report it")
    found = f"{default}; available: {', '.join(available)}"
    if _LOCAL in available or default in _FOR_HOSTS:
        return Check(subject, "congestion control", found)
    remedy = (
        f"make {_LOCAL} available (modprobe tcp_{_LOCAL}): channels within this host would use it, and are slower "
        f"with {default}"
    )
    return Check(subject, "congestion control", found, remedy)


def certificate(subject: str, name: str, path: str, ends: float, now: float) -> Check:
    """How long a certificate is still good."""
    left = ends - now
    date = datetime.fromtimestamp(ends, UTC).strftime("%Y-%m-%d %H:%M UTC")
    values = {"ends": ends}
    if left <= 0:
        remedy = f"renew {path}: it is read again without a restart"
        return Check(subject, name, f"expired on {date}", remedy, values=values)
    found = f"valid until {date}"
    if left < SOON_S:
        remedy = f"renew {path} in time: {left / 3600:.0f} h are left; it is read again without a restart"
        return Check(subject, name, found, remedy, values=values)
    return Check(subject, name, found, values=values)


def private(subject: str, name: str, path: str, mode: int) -> Check:
    """Check that a private file cannot be read by other users; ``mode`` is its permissions."""
    found = f"{path} has mode {mode & 0o777:o}"
    if not mode & 0o077:
        return Check(subject, name, found)
    remedy = f"make the file private: chmod 600 {path}; replace its content if it may have leaked"
    return Check(subject, name, found, remedy)


def channel(subject: str, to: str, reply: wire.ProbeReply) -> Check:
    """Check that one worker's channel to another can be opened, and its throughput."""
    if not reply.reached:
        port = to.rpartition(":")[2]
        remedy = (
            f"let the first node reach port {port} of the second (firewall, routes), and check "
            f"that others can reach the worker at the node's address"
        )
        return Check(subject, "channel", reply.error, remedy, unreachable=True)
    if reply.error:
        remedy = "read both workers' standard error: the port is open, but opening the channel failed"
        if "named by" in reply.error:
            remedy = (
                "let the first node reach the ephemeral ports of the second (firewall, routes): "
                "each fragment's process receives data at such a port"
            )
        elif "secret" in reply.error:
            remedy = "give both workers the same secret, and restart the worker that has another"
        elif "TLS" in reply.error:
            remedy = "give both workers valid certificates of one authority, each for its own host"
        return Check(subject, "channel", reply.error, remedy, unreachable=True)
    values = {
        "opened_s": reply.opened_us / 1e6,
        "round_trip_min_s": reply.round_trip_min_us / 1e6,
        "round_trip_s": reply.round_trip_us / 1e6,
        "throughput_bytes_per_s": reply.throughput,
    }
    found = (
        f"opens in {reply.opened_us / 1e3:.1f} ms, round trip {reply.round_trip_us / 1e3:.2f} ms, "
        f"{reply.throughput / 1e6:,.0f} MB/s"
    )
    return Check(subject, "channel", found, values=values)


def limits(subject: str, said: LinkLimits, reply: wire.ProbeReply) -> Check | None:
    """Check that a link is about as described in the topology; None if there is no description."""
    if said.bandwidth is None and said.latency_ms is None:
        return None
    wrong: list[str] = []
    if said.bandwidth is not None and reply.throughput < said.bandwidth / 2:
        wrong.append(
            f"{reply.throughput / 1e6:,.1f} MB/s, but the topology's 'bandwidth' is "
            f"{said.bandwidth / 1e6:,.1f} MB/s"
        )
    there_and_back = reply.round_trip_min_us / 1e3
    if said.latency_ms is not None and there_and_back > 4 * said.latency_ms + 1:
        wrong.append(
            f"{there_and_back:.1f} ms there and back, but the topology's 'latency_ms' is "
            f"{said.latency_ms:g} one way"
        )
    if not wrong:
        return Check(subject, "limits", "about as in the topology")
    remedy = "look at the network, or correct the limits of the link: placements depend on these limits"
    return Check(subject, "limits", "; ".join(wrong), remedy)
