"""The process group that torch sees; what it does is up to its ``Collectives``.

On every torch it is a Python ``ProcessGroup`` of which each collective is overridden: what torch's
base class would run instead, it would run with the GIL held
(``latecomer.runtime.process_group.collectives``).

From torch 2.14 on a Python class can also be a c10d ``Backend``. Then the collectives of the group
go through torch's own dispatcher to :class:`LatecomerBackend`, so that the hooks of a process group
see them, and C++ code that asks for the backend of a device gets ours. The group stays in front of
it for two reasons: the handle that torch makes of a Python backend's work never says that it is
completed (seen on 2.14.1), so that a program that polls would poll for ever; and a backend in
Python can't change its rank and size, which c10d's reconfiguration does
(``latecomer.runtime.process_group.reconfiguring``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from functools import partialmethod
from typing import Any

import torch
import torch.distributed as dist

from latecomer.runtime.host import host
from latecomer.runtime.process_group.collectives import Collectives
from latecomer.runtime.process_group.reconfiguring import Meeting, Reconfigured
from latecomer.runtime.torch_versions import (
    PYTHON_BACKENDS,
    RECONFIGURES,
    Backend,
    BarrierOptions,
    ErrorType,
    GroupName,
    PrefixStore,
    Store,
    Work,
)

BACKEND = "latecomer"
COLLECTIVES = """
_allgather_base _reduce_scatter_base all_gather_single all_gather_single_coalesced
all_to_all_single allgather allgather_coalesced allgather_into_tensor_coalesced allreduce
allreduce_coalesced alltoall alltoall_base barrier broadcast gather gather_into_tensor
gather_single recv recv_anysource reduce reduce_scatter reduce_scatter_single
reduce_scatter_single_coalesced reduce_scatter_tensor_coalesced scatter send
"""
"""Every method of a ProcessGroup, of any torch from 2.11 on, that starts a collective."""

HOOKS = ("register_pre_hook", "unregister_pre_hook", "register_post_hook", "unregister_post_hook")


class _Forwarding:
    """What group and backend have in common."""

    collectives: Collectives

    def getBackendName(self) -> str:
        """The name under which torch knows it."""
        return BACKEND

    def set_timeout(self, timeout: timedelta) -> None:
        """Change the time limit of operations from now on."""
        self.collectives.set_timeout(timeout)

    def shutdown(self) -> None:
        """Release threads and connections (``destroy_process_group`` calls it)."""
        self.collectives.shutdown()

    def abort(self) -> None:
        """Fail what is under way, here and on all ranks; the group may be reconfigured then."""
        self.collectives.close(at_once=True)


class ForwardingGroup(_Forwarding, dist.ProcessGroup):
    """A process group of which every collective is overridden; ``collectives`` is what it does."""

    def __init__(self, collectives: Collectives) -> None:
        rank = collectives.rank
        size = collectives.size
        # with a store, torch takes no subclass
        dist.ProcessGroup.__init__(self, rank, size)  # type: ignore[call-arg]
        self.collectives = collectives
        self._meeting: Meeting | None = None
        backends = collectives.backends
        groups: list[dist.ProcessGroup] = [self]
        if PYTHON_BACKENDS:
            custom = dist.ProcessGroup.BackendType.CUSTOM
            self._backend = LatecomerBackend(collectives)
            self._dispatching: Any = dist.ProcessGroup(collectives.store, rank, size)
            backends = {device: (custom, self._backend) for device in backends}
            groups.append(self._dispatching)
        for group in groups:
            group._set_default_backend(backends["cpu"][0])
            for device, (kind, backend) in backends.items():
                group._register_backend(torch.device(device), kind, backend)

    def get_group_store(self) -> Store:
        """The store of the group."""
        return self.collectives.store

    @property
    def paths(self) -> Counter[str]:
        """How many operations went which way, or why natively; other than all-reduces by name."""
        return self.collectives.paths

    def monitored_barrier(
        self, timeout: timedelta | None = None, wait_all_ranks: bool = False
    ) -> None:
        """A barrier that names the ranks that did not come within ``timeout``."""
        self.collectives.native.monitored_barrier(timeout, wait_all_ranks)

    def split_group(
        self,
        ranks: Sequence[int],
        timeout: timedelta | None = None,
        opts: Any = None,
        group_name: str | None = None,
        group_desc: str | None = None,
        device_types: Any = None,
    ) -> ForwardingGroup | None:
        """A group of some of the ranks, in their order here; nothing on the others."""
        ranks = sorted(ranks)
        members = ",".join(map(str, ranks))
        name = group_name or f"{self.group_name}:split:{members}"
        store = PrefixStore(f"{name}/{members}/", self.collectives.store)
        collectives = self.collectives.split(store, ranks, timeout)
        if collectives is None:
            return None
        group = type(self)(collectives)
        group._set_group_name(GroupName(name))
        group._set_group_desc(group_desc or "undefined")
        return group

    def getRank(self) -> int:
        """This rank, as C++ asks for it: it changes when the group is reconfigured."""
        return self.collectives.rank

    def getSize(self) -> int:
        """How many ranks there are, as C++ asks for it."""
        return self.collectives.size

    @property
    def supports_reconfigure(self) -> bool:
        """Whether the group may go on with other ranks (torch 2.14 and later)."""
        return RECONFIGURES

    def get_reconfigure_handle(self) -> str:
        """What others need to have this process in a group of theirs; see :class:`Meeting`."""
        if self._meeting is None:
            self._meeting = Meeting(self.collectives.store, self.collectives.timeout)
        return self._meeting.handle

    def reconfigure(self, opts: Any) -> Work:
        """Go on with the ranks of ``opts.handles``, in their order (collective among those).

        What is under way fails. It is done when this returns.

        Raises:
            ArgumentError: a handle is none of this backend's, or this process's own is missing.
            RankFailure: ranks that did not join within ``opts.timeout``.
        """
        self.get_reconfigure_handle()
        assert self._meeting is not None
        before = self.collectives
        timeout = before.timeout
        group = self._meeting.group(opts.uuid, opts.handles, opts.timeout or timeout)
        before.close(at_once=True)

        collectives = before.among(group)
        collectives.set_timeout(timeout)
        collectives.paths.update(before.paths)
        self.collectives = collectives
        self._backend.collectives = collectives
        before.shutdown()
        return Reconfigured()

    def _start_coalescing(self, device: torch.device) -> None:
        self.collectives.native._start_coalescing(device)

    def _end_coalescing(self, device: torch.device) -> Work:
        work: Work = self.collectives.native._end_coalescing(device)
        return work

    def _call(self, name: str, /, *args: Any, **kwargs: Any) -> Work | None:
        if not PYTHON_BACKENDS:
            return self.collectives.call(name, args, kwargs)
        return self._backend.last(self._change(name, *args, **kwargs))

    def _change(self, name: str, /, *args: Any, **kwargs: Any) -> Any:
        """Call torch's own method, where collectives are dispatched."""
        return getattr(self._dispatching, name)(*args, **kwargs)


class LatecomerBackend(_Forwarding, Backend):
    """The same as a c10d backend (torch 2.14 and later), for CPU and CUDA tensors."""

    def __init__(self, collectives: Collectives) -> None:
        Backend.__init__(self, collectives.rank, collectives.size)
        self.collectives = collectives
        self._thread = host.ThreadLocal()

    def allreduce_sparse(self, *args: Any, **kwargs: Any) -> Work | None:
        """An all-reduce of sparse tensors."""
        return self._call("allreduce", *args, **kwargs)

    def monitored_barrier(self, options: BarrierOptions, wait_all_ranks: bool = False) -> None:
        """A barrier that names the ranks that did not come in time."""
        timeout = options.timeout if options.timeout > timedelta(0) else None
        self.collectives.native.monitored_barrier(timeout, wait_all_ranks)

    def split(self, store: Store, ranks: Sequence[int], options: Any) -> LatecomerBackend:
        """The backend of a group of some of the ranks, this one among them."""
        collectives = self.collectives.split(store, ranks, None)
        assert collectives is not None
        return LatecomerBackend(collectives)

    def get_error(self) -> Any:
        """Whether all-reduces fail, in c10d's words."""
        return ErrorType.SUCCESS if self.collectives.failure is None else ErrorType.COMM_ERROR

    def _set_sequence_number_for_group(self) -> None:
        """The native backends count for themselves."""

    def last(self, handle: Work | None) -> Work | None:
        """The work that this thread's last call gave torch, of which torch made ``handle``."""
        work = getattr(self._thread, "work", None)
        self._thread.work = None
        return work or handle

    def _call(self, name: str, /, *args: Any, **kwargs: Any) -> Work | None:
        self._thread.work = work = self.collectives.call(name, args, kwargs)
        return work


for _name in COLLECTIVES.split():  # those that this torch has
    if hasattr(dist.ProcessGroup, _name):
        setattr(ForwardingGroup, _name, partialmethod(ForwardingGroup._call, _name))
    if hasattr(Backend, _name):
        setattr(LatecomerBackend, _name, partialmethod(LatecomerBackend._call, _name))
for _name in HOOKS if PYTHON_BACKENDS else ():
    setattr(ForwardingGroup, _name, partialmethod(ForwardingGroup._change, _name))
