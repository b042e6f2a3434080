"""What the runtime takes of torch that torch does not promise, and what differs between versions.

Every other module of ``runtime`` gets the process groups' types and torch's private names here, so
that a new torch is met in one place. What differs is asked of torch itself, not concluded from its
version; ``docs/reference/torch-versions.md`` says with which versions the tests were run.

Private, and there in all of 2.11 to 2.15:

| what | why it is needed |
|---|---|
| c10d types of ``torch._C`` | no public module has all |
| ``_world.pg_map``: :func:`store_of` | no public way to that store |
| ``_world.pg_group_ranks``: :func:`ranks_of_groups` | not in Gloo's dumps |
| ``_dump_fr_trace_json``: :func:`flight_dump` | no public way |
| the same: :func:`issued_so_far` | Gloo counts sends, too |
| ``_WorkerServer``: :func:`worker_server` | no public way to it |
| ``DDP._comm_hooks``: :func:`hooks_of` | a second one is refused in C++ |
| ``Store.clone``: :func:`own_connection` | its stub lacks it |
| ``_current_graph_task_id``: :func:`backward_number` | counts them |
| ``_sleep``: :func:`occupy_gpu` | no public way to be late on a GPU |
| ``_symmetric_memory``: :func:`symmetric_tensor` | to compare with |
| ``_SymmetricMemory``: :func:`symmetric_buffer` | alpha; no public way |
| pipelining's ``_PipelineStageBase`` ... | no public base class |

What differs:

| what | 2.11 | 2.12, 2.13 | 2.14 | 2.15 | why it is needed |
|---|---|---|---|---|---|
| ``register_pre_hook``: :func:`add_hooks` | no | no | yes | yes | to watch what runs natively |
| :func:`hook_names` | none | none | kinds | forms, too | each is a kind of collective |
| Python ``Backend``: :data:`PYTHON_BACKENDS` | no | no | yes | yes | hooks and C++ callers see it |
| ``reconfigure``: :data:`RECONFIGURES` | no | no | yes | yes | groups go on with other ranks |
| :func:`count_operations` | must | must | warns | warns | native operations are numbered |
| :func:`allow_monitored_barrier` | Gloo | Gloo | CPU | CPU | ours is called otherwise |
| :func:`announce_inputs` | no need | must | must | must | to get their gradients |
| :func:`skip_validation` | always | asked | asked | asked | messages describe themselves |
| :func:`outputs_of` a stage | cache | cache | cache | states | our links send them |
| :func:`wants_waits` | no | no | no | yes | a schedule is refused otherwise |
| :func:`replace_reduction` | one | one | one | two | replicas are averaged |
| :func:`connect_nothing` | no need | no need | no need | must | waits without a deadline |
| :func:`no_groups_of_its_own` | none | none | a flag | later | messages take our links |
"""

# ruff: noqa: PLC0414  (an alias tells mypy that a name is for other modules)

from __future__ import annotations

import contextlib
import functools
import json
import re
from collections.abc import Callable
from datetime import timedelta
from http.client import HTTPConnection
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import AllreduceOptions as AllreduceOptions
from torch._C._distributed_c10d import Backend as Backend
from torch._C._distributed_c10d import BarrierOptions as BarrierOptions
from torch._C._distributed_c10d import ErrorType as ErrorType
from torch._C._distributed_c10d import GradBucket as GradBucket
from torch._C._distributed_c10d import HashStore as HashStore
from torch._C._distributed_c10d import PrefixStore as PrefixStore
from torch._C._distributed_c10d import Store as Store
from torch._C._distributed_c10d import TCPStore as TCPStore
from torch._C._distributed_c10d import Work as Work
from torch.distributed import config, distributed_c10d
from torch.distributed.distributed_c10d import GroupName as GroupName
from torch.distributed.distributed_c10d import _get_default_group, _world

if TYPE_CHECKING:
    from torch.distributed.pipelining import schedules, stage

    PipelineAction = schedules._Action
    PipelineContext = schedules._PipelineContext
    PipelineScheduleRuntime = schedules._PipelineScheduleRuntime
    PipelineStageBase = stage._PipelineStageBase
else:
    _PIPELINING = {
        "PipelineAction": ("schedules", "_Action"),
        "PipelineContext": ("schedules", "_PipelineContext"),
        "PipelineScheduleRuntime": ("schedules", "_PipelineScheduleRuntime"),
        "PipelineStageBase": ("stage", "_PipelineStageBase"),
    }

    def __getattr__(name: str) -> Any:
        # With the first use only: it takes a second, which jobs without a pipeline need not spend.
        if name not in _PIPELINING:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module, private = _PIPELINING[name]
        return getattr(import_module(f"torch.distributed.pipelining.{module}"), private)


SERVER_STARTS_S = 30.0  # a server on a thread of C++ has so long to begin
_DIRECTIONS = "pipeline_per_direction_p2p"  # 2.14
_EDGES = "pipeline_per_edge_p2p"  # from 2.15 on
FORM = re.compile(r"(_BASE|(_INTO)?(_TENSOR)?_COALESCED)$")  # in the names of operations
HAS_HOOKS = hasattr(dist.ProcessGroup, "register_pre_hook")
"""From 2.14 on a process group tells of each collective before and after it is issued."""
RECONFIGURES = hasattr(dist.ProcessGroup, "reconfigure")
"""From 2.14 on a group may go on with other ranks, and Python groups and backends override that."""
PYTHON_BACKENDS = hasattr(Backend, "new_window")
"""From 2.14 on ``Backend`` has a constructor for, and calls the methods of, Python subclasses."""


def store_of(group: dist.ProcessGroup | None) -> Store:
    """The store under which ``group`` was made (default: the group of all ranks).

    Raises:
        ValueError: ``group`` is None and ``init_process_group`` was not called.
    """
    return _world.pg_map[_get_default_group() if group is None else group][1]


def groups_of_rank() -> list[tuple[dist.ProcessGroup, list[int]]]:
    """The process groups that this rank is in, each with its ranks in their order."""
    groups = dict(_world.pg_group_ranks)  # another thread may be making one
    return [
        (group, sorted(places, key=places.__getitem__))
        for group, places in groups.items()
        if isinstance(group, dist.ProcessGroup)  # else a mark for groups without this rank
    ]


def backward_number() -> int:
    """A number of the backward pass that runs on this thread; to be asked in its hooks only."""
    return torch._C._current_graph_task_id()


def groups_so_far() -> int:
    """A number that changes when a process group is made; quick."""
    return len(_world.pg_group_ranks)


def ranks_of_groups() -> dict[str, list[int]]:
    """By name, the ranks of each process group that this rank is in, in their order."""
    return {group.group_name: ranks for group, ranks in groups_of_rank()}


def flight_dump() -> tuple[bytes, str]:
    """This rank's Flight Recorder, and the suffix of a file for it.

    NCCL's as a pickle, with stacks and the ranks of groups, where NCCL is used; else the one that
    Gloo writes to, as JSON, which has neither.
    """
    private: Any = import_module("torch._C._distributed_c10d")
    if any("nccl" in dist.get_backend(group) for group, _ in groups_of_rank()):
        return private._dump_nccl_trace(), ".pkl"
    return private._dump_fr_trace_json(), ".json"


class Issued(NamedTuple):
    """What a group has issued since it was made."""

    collectives: int
    is_last_between_two: bool  # the last of all was a send or a receive


def issued_so_far(group: dist.ProcessGroup) -> Issued:
    """What a group has issued; not quick, unless that is nothing.

    Gloo counts sends and receives, too. Its recorder, which is on unless a variable turns it off,
    has the number of the last collective alone, and the one among all.
    """
    private: Any = group
    count: int = private._get_sequence_number_for_group()
    if count == 0 or "nccl" in dist.get_backend(group):
        return Issued(count, is_last_between_two=False)
    recorder: Any = import_module("torch._C._distributed_c10d")
    recorded = [
        (int(entry["op_id"]), int(entry["collective_seq_id"]))
        for entry in json.loads(recorder._dump_fr_trace_json()).get("entries", ())
        if entry["process_group"][0] == group.group_name
    ]
    if not recorded:
        return Issued(count, is_last_between_two=False)
    last, collectives = max(recorded)
    return Issued(collectives, is_last_between_two=last < count)


def add_hooks(
    group: dist.ProcessGroup,
    number: int,
    before: Callable[[Any], None],
    after: Callable[[Any], None],
) -> None:
    """Let these be told of each operation of the group, where :data:`HAS_HOOKS`."""
    private: Any = group
    private.register_pre_hook(number, before)
    private.register_post_hook(number, after)


def hook_names() -> dict[Any, str]:
    """How hooks call operations, and of which each is a form; nothing where there are no hooks.

    From 2.15 on they tell ``ALLGATHER_BASE`` and ``ALLGATHER_COALESCED`` from ``ALLGATHER``.
    """
    if not HAS_HOOKS:
        return {}
    private: Any = import_module("torch._C._distributed_c10d")
    return {op: FORM.sub("", name) for name, op in private.HookOpName.__members__.items()}


def remove_hooks(group: dist.ProcessGroup, number: int) -> None:
    """Tell no more."""
    private: Any = group
    private.unregister_pre_hook(number)
    private.unregister_post_hook(number)


def worker_server(address: str) -> Any:
    """A server of torch's, on a thread of C++, that answers while the interpreter is held.

    It has a ``port``, and a ``shutdown()``, which waits for ever if the thread has not begun to
    listen; so the server has answered before this returns. Its handlers are those of
    ``torch.distributed.debug``.

    Raises:
        OSError: it has not answered within :data:`SERVER_STARTS_S`.
    """
    from torch._C._distributed_c10d import _WorkerServer

    server = _WorkerServer(address, 0)
    connection = HTTPConnection("127.0.0.1", server.port, timeout=SERVER_STARTS_S)
    try:
        connection.request("POST", "/handler/ping")
        connection.getresponse().read()
    finally:
        connection.close()
    return server


def hooks_of(model: torch.nn.parallel.DistributedDataParallel) -> list[Any]:
    """The communication hooks that were registered for ``model``; DDP takes one at most."""
    return list(model._comm_hooks)


def allow_monitored_barrier(kind: type[Any]) -> None:
    """Let ``dist.monitored_barrier`` take groups of the class ``kind``.

    Up to 2.13 it refuses every group whose backend is not named ``gloo``, and has no hook for
    others, so that torch's function is replaced by one that looks at the group first.
    """
    if PYTHON_BACKENDS or hasattr(dist.monitored_barrier, "__wrapped_by_latecomer__"):
        return
    original = dist.monitored_barrier

    @functools.wraps(original)
    def monitored_barrier(
        group: Any = None, timeout: Any = None, wait_all_ranks: bool = False
    ) -> Any:
        chosen = _get_default_group() if group is None else group
        if not isinstance(chosen, kind):
            return original(group, timeout, wait_all_ranks)
        if isinstance(timeout, int | float):
            timeout = timedelta(seconds=timeout)
        return chosen.monitored_barrier(timeout, wait_all_ranks)

    monitored_barrier.__wrapped_by_latecomer__ = True  # type: ignore[attr-defined]
    dist.monitored_barrier = monitored_barrier
    distributed_c10d.monitored_barrier = monitored_barrier


def count_operations(backend: Any) -> None:
    """Let a native backend number its operations."""
    if not PYTHON_BACKENDS:
        backend._set_sequence_number_for_group()


def own_connection(store: Store) -> Store:
    """The same store over a connection of its own."""
    clone: Store = store.clone()  # type: ignore[attr-defined]
    return clone


def occupy_gpu(cycles: int) -> None:
    """Hold up the current CUDA stream for so many cycles, and not the host."""
    torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]


def symmetric_tensor(
    numel: int, dtype: torch.dtype, device: torch.device
) -> tuple[torch.Tensor, bool]:
    """For ``torch.ops.symm_mem``, and if by multicast; collective. RuntimeError: there is none."""
    torch_memory: Any = import_module("torch.distributed._symmetric_memory")
    tensor = torch_memory.empty(numel, dtype=dtype, device=device)
    return tensor, bool(torch_memory.rendezvous(tensor, dist.group.WORLD).multicast_ptr)


def symmetric_buffer(
    nbytes: int, device: torch.device, name: str, rank: int, world_size: int, store: Store
) -> tuple[torch.Tensor, list[int], object]:
    """A buffer of ``device`` that all ranks can reach, by rank its address here; collective.

    The object must be kept as long as addresses are used. The ranks meet through ``store``, which
    is used for nothing else, under a ``name`` that all have and that serves once. RuntimeError if
    they are not of one NVLink domain.
    """
    kind: Any = import_module("torch._C._distributed_c10d")._SymmetricMemory
    kind.set_group_info(name, rank, world_size, store)
    buffer = kind.empty_strided_p2p((nbytes,), (1,), torch.uint8, device)
    handle = kind.rendezvous(buffer, name)
    peers = [handle.get_buffer(peer, (nbytes,), torch.uint8) for peer in range(world_size)]
    return buffer, [peer.data_ptr() for peer in peers], handle


def announce_inputs(stage: PipelineStageBase, count: int) -> None:
    """Tell ``stage`` how many inputs its forward has, those given by keyword apart.

    From 2.12 on a backward keeps the gradients of as many as ``_stage_meta.inputs`` has entries,
    and fails where that is None. In 2.11 there is no such attribute and all gradients are kept.
    """
    meta: Any = getattr(stage, "_stage_meta", None)
    if meta is not None:
        meta.inputs = (None,) * count


def skip_validation(stage: PipelineStageBase) -> None:
    """Let ``stage`` take tensors of any shape and dtype (2.11 always compares, in two methods)."""
    if hasattr(stage, "_runtime_validate"):
        stage._runtime_validate = False
    else:
        for name in ("_validate_fwd_input", "_validate_fwd_outputs"):
            setattr(stage, name, lambda *_: None)


def take_input_gradients(
    stage: PipelineStageBase, microbatch: int, count: int
) -> tuple[torch.Tensor | None, ...]:
    """The gradients of the ``count`` inputs of ``stage``, which forgets them; 2.11 has more."""
    return stage.bwd_cache.pop(microbatch)[:count]


def outputs_of(stage: PipelineStageBase, microbatch: int) -> tuple[Any, ...]:
    """What the forward of ``microbatch`` returned; from 2.15 on it is kept elsewhere."""
    if hasattr(stage, "fwd_cache"):
        outputs: tuple[Any, ...] = stage.fwd_cache[microbatch][0]
        return outputs
    private: Any = stage
    return tuple(private._forward_chunk_states[microbatch].live_outputs)


def wants_waits() -> bool:
    """Whether schedules of pipelines need a wait for each send and reduction: from 2.15 on.

    Before there are no such actions, and a file with them is taken for something else.
    """
    schedules: Any = import_module("torch.distributed.pipelining.schedules")
    return hasattr(schedules._ComputationType, "WAIT_SEND_F")


def replace_reduction(runtime: PipelineScheduleRuntime, reduce: Callable[..., None]) -> None:
    """Let ``runtime`` call ``reduce`` for REDUCE_GRAD, and do nothing in the wait for it."""
    kinds: Any = import_module("torch.distributed.pipelining.schedules")._ComputationType
    runtime.register_custom_function(kinds.REDUCE_GRAD, reduce)
    if wants_waits():
        runtime.register_custom_function(kinds.WAIT_REDUCE_GRAD, lambda *_: None)


def connect_nothing(runtime: PipelineScheduleRuntime) -> None:
    """Let ``runtime`` begin without collectives and messages of its own, which know no deadline.

    From 2.15 on the first step is an all-reduce over the group and a message over each link.
    Before, stages are asked for the messages.
    """
    if not hasattr(runtime, "_p2p_initialized"):
        return
    runtime._p2p_initialized = True
    private: Any = runtime
    for stage in private._stages:
        stage.p2p_per_edge = False  # see no_groups_of_its_own


def no_groups_of_its_own() -> contextlib.AbstractContextManager[Any]:
    """Inside, a stage is made without process groups of its own.

    In 2.14 ``TORCH_DISTRIBUTED_PIPELINE_PER_DIRECTION_P2P=1`` makes each stage split its group in
    two, one for each direction: collective, and an error where the default group is not bound to a
    device, as with Gloo. Stages whose messages take other ways have no use for them. From 2.15 on
    the runtime makes such groups, unless :func:`connect_nothing` keeps it from that; a stage only
    says whether it wants them, and if not, warns of groups over NCCL.
    """
    for flag, value in ((_DIRECTIONS, False), (_EDGES, True)):
        if hasattr(config, flag):
            patched: contextlib.AbstractContextManager[Any] = config.patch(flag, value)
            return patched
    return contextlib.nullcontext()
