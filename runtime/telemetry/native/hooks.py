"""Told of each collective, send and receive that this rank enters, in any group of torch's own.

    hooks = GroupHooks(entered, ended)
    hooks.begin()  # on every group that there is
    hooks.look()   # on those that have been made since
    hooks.end()

torch calls hooks since 2.14, on the thread that enters the operation, before and after it is
issued. Whether an operation of CPU tensors has ended is asked when the next one is entered, and
twice a second: a call by Gloo's thread at the very moment would cost ten times as much as all else.
So when it ended is not known. What runs on a GPU is only enqueued, and its end is not seen here;
neither is that of a reduce-scatter, whose work never says that it is done, also on a CPU.

All members of a group number its collectives alike. Those of a group that is there when the watch
begins count from then on. A later group is seen with the next operation in one that is watched, or
half a second later; it has been counting by itself since it was made. So a rank that has entered
nothing since may be in its last: ``unseen``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from latecomer.runtime.host import host
from latecomer.runtime.telemetry.records import (
    BETWEEN_TWO,
    NOT_COUNTED,
    UNSEEN,
    UNSEEN_ENDS,
    Members,
)
from latecomer.runtime.torch_versions import (
    add_hooks,
    groups_of_rank,
    groups_so_far,
    hook_names,
    issued_so_far,
    remove_hooks,
)

HOOK = 0x1A7EC0  # tells ours from hooks of others
KINDS = {
    "SEND": "send",
    "RECV": "recv",
    "BROADCAST": "broadcast",
    "ALLREDUCE": "all_reduce",
    "REDUCE": "reduce",
    "ALLGATHER": "all_gather",
    "REDUCE_SCATTER": "reduce_scatter",
    "ALLTOALL": "all_to_all",
    "BARRIER": "barrier",
    "SCATTER": "scatter",
    "GATHER": "gather",
}
"""By torch's name of an operation, ours; what is missing here is no communication."""
BY_NAME = {op: KINDS[name] for op, name in hook_names().items() if name in KINDS}
"""The same by torch's object, which is found ten times as fast."""

ROOTED = ("broadcast", "reduce", "scatter", "gather")
ONE_HAS_ALL = ("scatter", "gather")
"""Operations of which the root alone has all tensors."""
ANY_SIZES = ("all_to_all", *ONE_HAS_ALL)
"""Operations whose sizes may differ from rank to rank."""
MOST_ASKED = 1024  # operations of which the end is asked for; of more the oldest count as ended
MANY = 64  # behind one that has not ended


class Entry(NamedTuple):
    """An operation that this rank enters; ``entered_s`` by its own clock."""

    group: Members
    number: int
    kind: str
    root: int  # in the group, or the other rank of a send or a receive; -1: none, or anybody
    entered_s: float
    dtype: torch.dtype | None  # of its tensors; None: it has none
    elements_in: int
    elements_out: int
    is_seen_to_end: bool

    @property
    def is_between_two(self) -> bool:
        """Whether it is a send or a receive."""
        return self.kind in BETWEEN_TWO

    @property
    def peer(self) -> int:
        """Of a send or a receive: the other rank, in the job."""
        return self.group.ranks[self.root] if self.is_between_two and self.root >= 0 else -1

    @property
    def bytes(self) -> int:
        """Of the larger one of input and output."""
        return max(self.elements_in, self.elements_out) * (self.dtype.itemsize if self.dtype else 0)

    @property
    def signature(self) -> tuple[str | int, ...]:
        """The same on all ranks, if they do the same; empty if that is not known."""
        if self.kind == UNSEEN:
            return ()
        signature: tuple[str | int, ...] = (self.kind,)
        if self.dtype is not None and self.kind not in ONE_HAS_ALL:
            signature += (str(self.dtype).removeprefix("torch."),)
        if self.kind in ROOTED:
            signature += (f"root {self.group.ranks[self.root]}",)
        if self.dtype is not None and self.kind not in ANY_SIZES:
            signature += (self.elements_in, self.elements_out)
        return signature


Issuing = dict[tuple[str, int], tuple[Entry, int]]
"""What is about to be issued, by its group and torch's number in it; with the thread."""
Entered = Callable[[Entry], None]
Ended = Callable[[Entry, bool], None]
"""Told that an operation has ended by now, and whether it has failed."""


class GroupHooks:
    """Ours on the groups of this rank; ``entered`` and ``ended`` are called on any thread."""

    def __init__(self, entered: Entered, ended: Ended) -> None:
        self.groups: dict[str, Members] = {}
        self.unseen: Entry | None = None
        self._entered = entered
        self._ended = ended
        self._issuing: Issuing = {}
        self._unended: deque[tuple[Entry, Any]] = deque()  # with their work
        self._looking = host.Lock()
        self._asking = host.Lock()  # held by who takes something out of _unended
        self._groups_seen = 0

    def begin(self) -> None:
        """Attach to the groups that there are."""
        self._groups_seen = groups_so_far()
        for group, ranks in groups_of_rank():
            self._attach(group, ranks, first=0)

    def end(self) -> None:
        """Detach from all; what is under way then is told of no more."""
        self._ended = _ignore
        with self._looking:
            for group, _ in groups_of_rank():
                if group.group_name in self.groups:
                    remove_hooks(group, HOOK)
            self.groups = {}
        with self._asking:
            self._unended.clear()

    def look(self) -> None:
        """Attach to new groups, and see which operations have ended."""
        late = self._look_for_groups()
        self.unseen = late or self.unseen
        with self._asking:
            self._ask_all()

    def _look_for_groups(self) -> Entry | None:
        """Attach to those that have been made since, and tell what this rank has entered there."""
        unseen = None
        with self._looking:
            self._groups_seen = groups_so_far()
            for group, ranks in groups_of_rank():
                if group.group_name in self.groups:
                    continue
                issued = issued_so_far(group)
                members = self._attach(group, ranks, first=issued.collectives)
                if issued.is_last_between_two:
                    unseen = _unseen(members, NOT_COUNTED)
                elif issued.collectives > 0:
                    unseen = _unseen(members, issued.collectives - 1)
        return unseen

    def _begin_to_issue(self, entry: Entry, key: tuple[str, int]) -> None:
        """An operation is about to be issued."""
        thread = host.thread_number()
        if self._issuing:
            self._give_up(thread)
        self._issuing[key] = entry, thread
        self.unseen = None
        if groups_so_far() != self._groups_seen:
            self._look_for_groups()
        if self._asking.acquire(blocking=False):  # else somebody does so just now
            try:
                self._ask_oldest()
            finally:
                self._asking.release()
        self._entered(entry)

    def _attach(self, group: dist.ProcessGroup, ranks: list[int], first: int) -> Members:
        members = Members(
            name=group.group_name,
            ranks=tuple(ranks),
            description=group.group_desc,
            backend=dist.get_backend(group),
        )
        # It holds no reference to the group, which would keep Gloo's threads beyond its end.
        told = _Told(members, first, self._begin_to_issue, self._issued)
        add_hooks(group, HOOK, told.before, told.after)
        self.groups[members.name] = members
        return members

    def _issued(self, key: tuple[str, int], work: Any) -> None:
        """It is on its way; its work is kept until it has ended, and its tensors with it."""
        entry, _ = self._issuing.pop(key, (None, 0))
        if entry is None or work is None or not entry.is_seen_to_end:
            return
        if len(self._unended) >= MOST_ASKED:
            self._forget_oldest()
        self._unended.append((entry, work))

    def _forget_oldest(self) -> None:
        """Ask for its end no more."""
        with self._asking:
            if self._unended:
                oldest, _ = self._unended.popleft()
                self._ended(oldest, False)

    def _give_up(self, thread: int) -> None:
        """What this thread was about to issue in any group, and did not: torch has refused it."""
        for key, (entry, its_thread) in list(self._issuing.items()):
            if its_thread == thread:
                del self._issuing[key]
                self._ended(entry, True)

    def _ask_oldest(self) -> None:
        """See whether those that were issued first have ended, up to one that has not."""
        while self._unended:
            entry, work = self._unended[0]
            if not work.is_completed():
                break
            self._unended.popleft()
            self._ended(entry, not work.is_success())
        if len(self._unended) > MANY:
            self._ask_all()

    def _ask_all(self) -> None:
        for _ in range(len(self._unended)):
            entry, work = self._unended.popleft()
            if work.is_completed():
                self._ended(entry, not work.is_success())
            else:
                self._unended.append((entry, work))


def _unseen(group: Members, number: int) -> Entry:
    """What this rank has entered in a group before that was watched."""
    return Entry(
        group=group,
        number=number,
        kind=UNSEEN,
        root=-1,
        entered_s=host.monotonic(),
        dtype=None,
        elements_in=0,
        elements_out=0,
        is_seen_to_end=False,
    )


def _ignore(entry: Entry, failed: bool) -> None:
    """The watch is over."""


class _Told:
    """What torch tells of one group."""

    def __init__(
        self,
        group: Members,
        first: int,
        issuing: Callable[[Entry, tuple[str, int]], None],
        issued: Callable[[tuple[str, int], Any], None],
    ) -> None:
        self._group = group
        self._is_on_cpu = "nccl" not in group.backend  # of operations without a tensor
        self._issuing = issuing
        self._issued = issued
        self._next = first
        self._next_between: dict[tuple[str, int], int] = {}

    def before(self, arguments: Any) -> None:
        """An operation is about to be issued."""
        entered_s = host.monotonic()
        kind = BY_NAME.get(arguments.name)
        if kind is None:
            return
        entry = self._entry(kind, arguments, entered_s)
        self._issuing(entry, (self._group.name, arguments.op_id))

    def after(self, arguments: Any) -> None:
        """It has been."""
        self._issued((self._group.name, arguments.op_id), arguments.work)

    def _entry(self, kind: str, arguments: Any, entered_s: float) -> Entry:
        """As little as can be: this is a few microseconds of each operation."""
        root = arguments.root
        if kind in BETWEEN_TWO:
            number = self._next_between.get((kind, root), 0)
            self._next_between[kind, root] = number + 1
        else:
            number = self._next
            self._next += 1

        elements_in = 0
        elements_out = 0
        one = None
        for one in arguments.output_tensors:
            elements_out += one.numel()
        for one in arguments.input_tensors:
            elements_in += one.numel()
        if one is None:
            return Entry(self._group, number, kind, root, entered_s, None, 0, 0, self._is_on_cpu)
        return Entry(
            self._group,
            number,
            kind,
            root,
            entered_s,
            one.dtype,
            elements_in,
            elements_out,
            one.device.type == "cpu" and kind not in UNSEEN_ENDS,
        )
