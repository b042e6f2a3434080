"""Process groups of an engine's own, made and used by torch's public calls alone.

``batch_isend_irecv`` is the public way to one NCCL group of transfers. It takes only groups that
torch has registered, so not a ``ProcessGroupNCCL`` that one has made oneself: ``new_group`` makes
them, beside any default group, that of the backend ``latecomer`` too. Where all ranks of the job
take part it names groups by a count that all ranks share. Some of them meet under a name that each
derives by itself; up to torch 2.13 a rank that has seen another number of groups derives another
one, and would wait for ever. So the names are compared before the first use.

NCCL's communicator is made with the first collective call, in which all ranks have to take part,
and a late rank is in no round of the first phases. So an all-reduce of one element comes first.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from latecomer.runtime.executor.nccl.streams import Device
from latecomer.runtime.health.native_work import reason
from latecomer.runtime.host import host
from latecomer.runtime.network.store_exchange import StoreExchange
from latecomer.runtime.torch_versions import Store
from latecomer.verify.errors import ArgumentError, LatecomerError

PATIENCE = 4
"""How many times longer than ours a time limit of torch's is: ours ends first, and names ranks."""


TensorEnd = tuple[bool, torch.Tensor, int]
"""Whether to send, the tensor, the peer."""


class PeerGroup:
    """One process group with NCCL (or Gloo) for tensors on ``device``."""

    def __init__(self, device: Device, group: dist.ProcessGroup, ranks: list[int]) -> None:
        self._device = device
        self._group = group
        self._ranks = ranks

    def transfer(self, ends: Iterable[TensorEnd]) -> None:
        """Move tensors in one group of transfers, on the current stream; no order between them.

        Between two ranks the order is that of the ends on both. What is moved are bytes: NCCL does
        not know all of torch's dtypes.
        """
        batch = []
        for send, data, peer in ends:
            op = dist.isend if send else dist.irecv
            batch.append(dist.P2POp(op, data.view(torch.uint8), self._ranks[peer], self._group))
        with _lost():
            for work in dist.batch_isend_irecv(batch):
                work.wait()  # CUDA: the stream waits, not the host

    def all_reduce(self, tensor: torch.Tensor) -> None:
        """The library's own sum, in place, on the current stream."""
        with _lost():
            dist.all_reduce(tensor, group=self._group)

    def abort(self) -> None:
        """End all that is under way in it, here and on the peers."""
        self._device.abort(self._group)

    def close(self) -> None:
        """Release it, unless ``destroy_process_group`` has released all."""
        with contextlib.suppress(ValueError, AssertionError, RuntimeError):
            dist.destroy_process_group(self._group)


def make_groups(device: Device, group: StoreExchange, count: int) -> list[PeerGroup]:
    """``count`` groups of the ranks of ``group``, ready for use on a stream (collective).

    Raises:
        ArgumentError: there is no default group.
        RankFailure: ranks that did not join within the time-out of ``group``.
        LatecomerError: the ranks' groups have different names.
        TimeoutError, RuntimeError: a rank was lost on the way.
    """
    if not dist.is_initialized():
        remedy = 'Call torch.distributed.init_process_group("nccl") or ("latecomer") first'
        text = "CUDA tensors are moved by process groups, which need the default one"
        raise ArgumentError("device", str(device.tensors), text, remedy)
    global_ranks = group.all_gather("global rank", str(dist.get_rank()))
    ranks = [int(global_ranks[rank]) for rank in range(group.world_size)]
    groups = [_made(device, group, ranks, number) for number in range(count)]
    stream = device.stream()

    def connect() -> None:
        for peer_group in groups:
            token = torch.zeros(1, device=device.tensors)
            stream.launch(functools.partial(peer_group.all_reduce, token))
        stream.synchronize()

    _within(group.timeout_s, connect)
    return groups


def nccl(store: Store, rank: int, size: int, timeout: timedelta) -> Any:
    """A process group of NCCL's for the backend ``latecomer``, which torch does not know of."""
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = timeout
    return dist.ProcessGroupNCCL(store, rank, size, options)


def _made(device: Device, group: StoreExchange, ranks: list[int], number: int) -> PeerGroup:
    group_of_torch = dist.new_group(
        ranks,
        timedelta(seconds=PATIENCE * group.timeout_s),
        device.backend,
        use_local_synchronization=len(ranks) < dist.get_world_size(),
        group_desc=f"latecomer {number}",
    )
    # A rank that derives another name would wait for the others for ever, at the first use.
    names = group.all_gather(f"group {number}", group_of_torch.group_name)
    if len(set(names.values())) > 1:
        raise LatecomerError(
            f"the ranks {ranks} have taken part in different numbers of process groups, so that "
            "torch can't make one more of them; make all groups on all ranks, or use torch 2.14"
        )
    return PeerGroup(device, group_of_torch, ranks)


def _within(limit_s: float, call: Callable[[], None]) -> None:
    """Call it, on a thread of its own; TimeoutError if that takes longer."""
    problems: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:
            problems.append(error)

    # torch's calls can't be interrupted: one that does not come back is left behind
    thread = host.Thread(target=run, name="latecomer-groups", daemon=True)
    thread.start()
    thread.join(limit_s)
    if thread.is_alive():
        raise TimeoutError(f"the ranks' process groups did not connect within {limit_s:g} s")
    if problems:
        raise problems[0]


@contextlib.contextmanager
def _lost() -> Iterator[None]:
    """What a library raises when a peer is lost, as the one error that torch has for it."""
    try:
        yield
    except dist.DistBackendError:
        raise
    except RuntimeError as error:
        raise dist.DistBackendError(reason(error)) from error
