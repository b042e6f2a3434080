"""The process group that torchft's Manager reconfigures: all-reduces our way, the rest by Gloo."""

from __future__ import annotations

import dataclasses
import logging
import os
from collections import Counter
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import msgspec
import torch
from torchft.process_group import ProcessGroupGloo

from latecomer.runtime.health.native_work import NativeWork
from latecomer.runtime.network.store_exchange import StoreExchange
from latecomer.runtime.policy.candidates import make_ahead
from latecomer.runtime.policy.cost_model import Profile
from latecomer.runtime.policy.known import Known, exchange_known
from latecomer.runtime.policy.options import Mode
from latecomer.runtime.process_group import reductions
from latecomer.runtime.torch_versions import PrefixStore, Store, Work
from latecomer.runtime.torchft.group import Group
from latecomer.runtime.torchft.settings import Seconds, checked, seconds
from latecomer.runtime.torchft.versions import tell_of_errors
from latecomer.runtime.work import unsummable
from latecomer.verify.errors import LatecomerError

PATH = "latecomer"  # the name in ``paths`` of what does not go by Gloo

logger = logging.getLogger("latecomer")


class ProcessGroup(ProcessGroupGloo):  # type: ignore[misc]  # (without types)
    """A process group for ``torchft.Manager(pg=...)``.

    An all-reduce is the sum or average of one CPU tensor of a dtype that can be carried; others,
    and all other collectives, go by Gloo; ``paths`` counts both. What goes wrong stands in the
    future of an all-reduce: a RankFailure that names the ranks of this quorum and the replicas
    behind them. ``wait()`` waits for that future, and returns False where it has failed.

    Args:
        timeout: how late a replica may be, in seconds (or a timedelta, as in torchft): one that
            keeps others waiting for so long is given up by all.
        silence: how long a replica that others wait for may give no sign of life, however late it
            may be. A thread of its own answers for it while it computes.
        join_timeout: how long replicas wait for each other when torchft reconfigures.
        mode: how is decided which all-reduces begin without late replicas, as for
            ``latecomer.configure``; default: ``static`` where ``late`` is given, else ``auto``.
        late: for mode static: the late replicas by their names (``Manager(replica_id=...)``), in
            the order of their arrival; the same on all. Who is not in a quorum does not count.
        most_late: see ``latecomer.configure``.
        profile: a file written by ``latecomer profile``; default: measured when the first quorum of
            two or more begins, and kept from then on by all, also by those that come later.

    Raises:
        ArgumentError: a value that makes no sense, or does not go with another.

    Examples:
        One replica, and a lighthouse of its own; in training there are several, each a process:

        >>> import torch
        >>> from torch.distributed import TCPStore
        >>> from torchft import Manager
        >>> from torchft.coordination import LighthouseServer
        >>> from latecomer.torchft import ProcessGroup
        >>> lighthouse = LighthouseServer(bind="[::]:0", min_replicas=1)
        >>> store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        >>> pg = ProcessGroup(timeout=60, silence=0.5, late={"replica_2"})
        >>> manager = Manager(
        ...     pg=pg, replica_id="replica_0", min_replica_size=1,
        ...     load_state_dict=None, state_dict=None, rank=0, world_size=1,
        ...     store_addr="127.0.0.1", store_port=store.port, hostname="127.0.0.1",
        ...     lighthouse_addr=lighthouse.address(),
        ... )
        >>> manager.start_quorum()
        >>> manager.allreduce(torch.ones(2)).wait()
        True
        >>> pg.replicas, pg.paths
        (('replica_0',), Counter({'latecomer': 1}))
        >>> manager.shutdown(wait=False)
        >>> pg.shutdown()
        >>> lighthouse.shutdown()
    """

    def __init__(
        self,
        timeout: Seconds = 60.0,
        silence: Seconds = 0.5,
        join_timeout: Seconds = 10.0,
        mode: Mode | None = None,
        late: str | Iterable[str] = (),
        *,
        most_late: int | None = None,
        profile: str | os.PathLike[str] | Profile | None = None,
    ) -> None:
        self._settings = checked(timeout, silence, join_timeout, mode, late, most_late, profile)
        super().__init__(timeout=timedelta(seconds=self._settings.join_timeout_s))
        self.paths: Counter[str] = Counter()  # of all-reduces: ours, or why they went by Gloo
        self._known = Known(replica="", profile=self._settings.profile)
        self._group: Group | None = None
        self._former: Group | None = None  # of the quorum before, which is being closed
        tell_of_errors()
        three = ["one", "another", *self._settings.late[-1:]]
        make_ahead(3, self._settings.options(three, set()))  # loads what any quorum wants

    def allreduce(self, tensors: list[torch.Tensor], opts: object) -> Work:
        """Start an all-reduce; see the class.

        LatecomerError is raised before torchft has configured the group, and after ``abort``.
        """
        group = self._group
        if group is None:
            raise LatecomerError("the process group is not configured: it has no quorum")

        operation = reductions.name(reductions.operation((opts,), {}))
        reason = _reason(tensors, operation)
        self._count(reason)
        if reason:
            work: Work = super().allreduce(tensors, opts)
            return work
        return group.submit(tensors[0], average=operation == "AVG")

    def error_reported(self, error: Exception) -> None:
        """The Manager was told of an error: all-reduces under way end, here and on all replicas.

        Where the group has failed the others know.
        """
        group = self._group
        if group is not None:
            group.abort(f"since an error was reported to its Manager: {error!r}")

    def errored(self) -> LatecomerError | None:
        """Why all-reduces fail, if they do; torchft asks before it commits a step."""
        group = self._group
        return None if group is None else group.failure

    def abort(self, errored: bool = True) -> None:
        """End this quorum's group; with ``errored`` its operations fail on all replicas at once."""
        group = self._group
        if group is not None:
            self._group = None
            if errored:
                group.abort("as its program has asked for")
            self._known = group.known
            group.start_closing()
            if self._former is not None:
                self._former.let_go()
            self._former = group
        super().abort(errored)

    def shutdown(self) -> None:
        """Leave, and wait until threads and connections are released."""
        self.abort(errored=False)
        if self._former is not None:
            self._former.close()
        super().shutdown()

    def set_timeout(self, timeout: Seconds) -> None:
        """Change how late a replica may be, from now on; the same on all."""
        self._settings = dataclasses.replace(self._settings, timeout_s=seconds(timeout))
        if self._group is not None:
            self._group.set_timeout(self._settings.timeout_s)

    def getBackendName(self) -> str:
        """The name under which torch knows it."""
        return "torchft-latecomer"

    @property
    def replicas(self) -> tuple[str, ...]:
        """The replicas of this quorum by their names, in order of rank; empty without one."""
        group = self._group
        return () if group is None else group.replicas

    def _create_pg(self, store: Store, rank: int, world_size: int) -> Any:
        """Connect with the others of a quorum (torchft calls it, in every version)."""
        settings = self._settings
        own = msgspec.structs.replace(self._known, replica=self._replica_id or "")
        exchange = StoreExchange(
            PrefixStore("latecomer", store), rank, world_size, settings.join_timeout_s
        )
        members = exchange_known(exchange, own)
        native = super()._create_pg(PrefixStore("gloo", store), rank, world_size)
        self._group = Group(exchange.store, rank, members, native, settings)
        self._group.set_timeout(settings.timeout_s)
        return native

    def _wrap_work(self, work: Work, opts: object) -> Work:
        """What Gloo does is under watch, too: who waits for a dead replica learns its name."""
        group = self._group
        return work if group is None else NativeWork(work, group.waits, None)

    def _count(self, reason: str) -> None:
        self.paths[reason or PATH] += 1
        if self.paths[reason] == 1 and reason:
            logger.info("replica %s: allreduce goes by Gloo: %s", self._replica_id, reason)


def _reason(tensors: list[torch.Tensor], operation: str) -> str:
    """Why an all-reduce goes by Gloo; empty if it does not."""
    if operation not in ("SUM", "AVG"):
        return f"operation {operation}"
    if len(tensors) != 1:
        return f"{len(tensors)} tensors at once"
    if tensors[0].device.type != "cpu":
        return f"device {tensors[0].device.type}"
    reason, _ = unsummable(tensors[0], operation == "AVG")
    return reason
