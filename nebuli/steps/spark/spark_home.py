"""`SparkHome`: the home of members that are tasks of Spark."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from nebuli.spark.prerequisites import check_java, check_pyspark
from nebuli.steps.errors import HomeUnfit
from nebuli.steps.spark.masters import (
    LOOPBACK,
    address_towards,
    is_on_this_machine,
)
from nebuli.steps.spark.spark_members import SparkMembers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nebuli.steps.coordinator.member_connection import MemberConnection
    from nebuli.steps.coordinator.member_homes import Members
    from nebuli.steps.member.member_order import MemberOrder
    from nebuli.store.store_url import StorePlace
    from netchannel import ReceiverServer
    from topology import Topology

_NEEDS = "members in Spark need"


class SparkHome:
    """Members as tasks at a ``master``; None: in a Spark of their own on this machine, as many as there are members.

    ``state`` is where they keep theirs, ``directory`` where paths of sources start. Raises HomeUnfit, FragmentError.
    """

    def __init__(self, master: str | None, state: StorePlace, directory: Path) -> None:
        check_pyspark(_NEEDS)
        check_java(_NEEDS)
        self._master = master
        self._directory = directory
        self.host = LOOPBACK
        if master is None or is_on_this_machine(master):
            return
        if master.startswith("sc://"):
            raise HomeUnfit(
                f"{_NEEDS} a Spark driver on this machine, but {master} is a server of Spark "
                f"Connect, which has its own driver: give the master of its cluster "
                f"(spark://HOST:PORT)"
            )
        if isinstance(state, Path):
            raise HomeUnfit(
                f"the members run on the machines of {master}, which do not have the folder {state}: give "
                "--state postgresql://USER@HOST/DATABASE?schema=NAME&blobs=s3://BUCKET/PREFIX"
            )
        try:
            self.host = address_towards(master)
        except (OSError, ValueError) as error:
            raise HomeUnfit(
                f"this machine cannot reach {master}: {error}; expected spark://HOST:PORT"
            ) from error

    def members(
        self,
        orders: Sequence[MemberOrder],
        lines: Sequence[MemberConnection],
        receiver: ReceiverServer,
        done: Callable[[], int],
    ) -> Members:
        """A task for each order; its messages go over the network."""
        master = self._master or f"local[{len(orders)}]"
        return SparkMembers(master, orders, lines, receiver, self._directory, done=done)


def master_of(topology: Topology) -> str | None:
    """The master of the node with the engine spark; None without one. Raises HomeUnfit."""
    nodes = [node for node in topology.nodes if node.engine == "spark"]
    if len(nodes) > 1:
        names = ", ".join(node.address for node in nodes)
        raise HomeUnfit(
            f"all members run in one Spark, but {len(nodes)} nodes of the topology have engine 'spark' "
            f"({names}): give this engine to one node only"
        )
    return nodes[0].master if nodes else None
