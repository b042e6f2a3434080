"""A naive judge of pipeline documents that shares no code with ``verify``: it runs them.

It reads the text with the plain ``json`` module and plays every rank step by step on a clock, with
queues of messages that carry what was sent, so that a wrong match is seen as wrong data. The other
properties are counted in the most literal way. Times are fractions.
"""

import json
import re
from collections import Counter, defaultdict, deque
from fractions import Fraction
from itertools import accumulate
from operator import itemgetter
from typing import Any

from tests.verify.pipeline.documents import split

Judgement = dict[str, Any]
Data = tuple[str, int, int]
"""F or B, the stage that makes it, the microbatch."""
GIVES = {"F": Fraction(1), "I": Fraction(-1, 2), "W": Fraction(-1, 2), "B": Fraction(-1)}


class Stuck(Exception):
    """No rank can go on, and some rank is not done."""


class Case:
    """A document with what is asked of it most often."""

    def __init__(self, text: str | bytes) -> None:
        doc = json.loads(text, parse_float=Fraction, parse_int=Fraction)
        self.stages = int(doc["stages"])
        self.n = int(doc["microbatches"])
        self.programs = [[split(action) for action in row] for row in doc["programs"]]
        self.instance = doc["situation"]
        self.meta = doc["meta"]
        rows = reversed([*enumerate(self.programs)])
        self.rank = {stage: r for r, row in rows for stage, _, _ in row}  # the lowest
        self.explicit = any("_" in kind and "GRAD" not in kind for _, kind, _ in self.all())

    def all(self) -> list[tuple[int, str, int]]:
        return [action for row in self.programs for action in row]

    def duration(self, stage: int, kind: str) -> Fraction:
        s = self.instance
        if kind == "B":
            fused = s.get("fused")
            return fused[stage] if fused else s["backward"][stage] + s["weight"][stage]
        return s[{"F": "forward", "I": "backward", "W": "weight"}[kind]][stage]

    def link(self, a: int, b: int) -> tuple[Fraction, Fraction, bool]:
        for link in self.instance.get("links", []):
            if {int(x) for x in link["between"]} == {a, b}:
                half = link.get("duplex") == "half"
                return link.get("latency", 0), link.get("occupancy", 0), half
        return Fraction(0), Fraction(0), False

    def data(self, stage: int, kind: str, m: int, made: bool = False) -> Data | None:
        """What a compute action needs from elsewhere, or what it makes for elsewhere."""
        forward = kind == "F"
        last = self.stages - 1
        if kind == "W" or stage == (0 if forward != made else last):
            return None
        return "F" if forward else "B", stage + (0 if made else -1 if forward else 1), m

    def carried(self, stage: int, kind: str, m: int) -> Data | None:
        """What a SEND or RECV carries."""
        if kind[:5] not in ("SEND_", "RECV_"):
            return None
        back = 0 if kind[:4] == "SEND" else -1 if kind[-1] == "F" else 1
        return kind[-1], stage + back, m

    def ends(self, data: Data) -> tuple[int, int]:
        """The ranks that send and receive data."""
        letter, stage, _ = data
        return self.rank[stage], self.rank[stage + 1 if letter == "F" else stage - 1]


def judge(text: str | bytes) -> Judgement:
    """Property name -> whether it holds (None: nothing to say), and what was measured."""
    case = Case(text)
    if not _well_formed(case):
        return {"well_formed": False}
    found: Judgement = {"well_formed": True, "exactly_once": _once(case)}
    once = found["exactly_once"]
    found["dependencies"] = _dependencies(case) if once else None
    found["loss_order"] = _losses(case)
    found["communication"] = _communication(case) if once else None
    said = once and found["communication"]
    found["message_order"] = _message_order(case) if said else None
    found["reduce_grad"] = _reduce(case) if once else None
    found["sharding"] = _sharding(case)
    peaks = [_peak(row) for row in case.programs]
    limits = case.instance.get("memory")
    found["memory"] = limits is None or all(p <= k for p, k in zip(peaks, limits, strict=True))
    if not (said and found["dependencies"]):
        return {**found, "deadlock_free": None}
    try:
        found["makespan"] = Buffered(case).time()
        found["deadlock_free"] = True
    except Stuck:
        return {**found, "deadlock_free": False}
    found["peak_memory"] = peaks
    if case.explicit:
        try:
            found["makespan_in_order"] = InOrder(case).time()
        except Stuck:
            found["makespan_in_order"] = None
            if case.instance.get("sends", "rendezvous") == "rendezvous":
                found["deadlock_free"] = False
    return found


def _well_formed(case: Case) -> bool:
    return (
        all(case.programs)
        and all(stage < case.stages and m < case.n for stage, _, m in case.all())
        and all(case.rank[stage] == r for r, row in enumerate(case.programs) for stage, _, _ in row)
        and set(case.rank) == set(range(case.stages))
    )


def _once(case: Case) -> bool:
    count = Counter(case.all())
    return all(
        [count[stage, kind, m] for kind in "FBIW"] in ([1, 1, 0, 0], [1, 0, 1, 1])
        for stage in range(case.stages)
        for m in range(case.n)
    )


def _dependencies(case: Case) -> bool:
    """Each rank alone, with everything from other ranks there already."""
    for r, row in enumerate(case.programs):
        made: set[Data | None] = set()
        run: set[tuple[int, str, int]] = set()
        for stage, kind, m in row:
            if kind not in GIVES:
                continue
            need = case.data(stage, kind, m)
            here = need is not None and case.rank[need[1]] == r
            own = {"F": (), "W": ("I",)}.get(kind, ("F",))
            if (here and need not in made) or any((stage, k, m) not in run for k in own):
                return False
            run.add((stage, kind, m))
            made.add(case.data(stage, kind, m, made=True))
    return True


def _losses(case: Case) -> bool:
    order = [m for stage, kind, m in case.all() if kind == "F" and stage == case.stages - 1]
    return order == list(range(len(order)))


def _communication(case: Case) -> bool:
    if not case.explicit:
        return True
    wanted: Counter[tuple[int, str, int]] = Counter()
    for r, row in enumerate(case.programs):
        for stage, kind, m in row:
            need = case.data(stage, kind, m) if kind in GIVES else None
            if need is not None and case.rank[need[1]] != r:
                wanted[stage, f"RECV_{need[0]}", m] += 1
                wanted[need[1], f"SEND_{need[0]}", m] += 1
    if Counter(action for action in case.all() if case.carried(*action)) != wanted:
        return False
    for row in case.programs:
        for position, (stage, kind, m) in enumerate(row):
            computed = {(stage, letter, m) for letter in ("F" if kind[-1] == "F" else "IB")}
            near = {"SEND": row[:position], "RECV": row[position:]}.get(kind[:4])
            if near is not None and not computed & set(near):
                return False
    return True


def _message_order(case: Case) -> bool:
    def between(a: int, b: int, verb: str) -> list[Data]:
        row = case.programs[a if verb == "SEND" else b]
        carried = [case.carried(*action) for action in row if action[1].startswith(verb)]
        return [data for data in carried if data and case.ends(data) == (a, b)]

    ranks = range(len(case.programs))
    return all(between(a, b, "SEND") == between(a, b, "RECV") for a in ranks for b in ranks)


def _texts(case: Case, letters: dict[str, str]) -> list[str]:
    """For each stage what happens there, one letter an action."""
    of = dict.fromkeys(GIVES, "c") | letters
    rows = [case.programs[case.rank[stage]] for stage in range(case.stages)]
    return [
        "".join(of.get(kind, "") for s, kind, _ in row if s == stage)
        for stage, row in enumerate(rows)
    ]


def _reduce(case: Case) -> bool:
    texts = _texts(case, {"REDUCE_GRAD": "g"})
    needless = not case.explicit and "g" not in "".join(texts)
    return needless or all(re.fullmatch("c*g", text) for text in texts)


def _sharding(case: Case) -> bool:
    texts = _texts(case, {"UNSHARD": "u", "RESHARD": "r"})
    return all(re.fullmatch("c*|(uc*r)*(uc*)?", text) for text in texts)


def _peak(row: list[tuple[int, str, int]]) -> Fraction:
    return max(accumulate((GIVES.get(kind, Fraction()) for _, kind, _ in row), initial=Fraction()))


class Run:
    """Every rank on one clock; the subclasses move the messages."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.now = Fraction(0)
        self.todo = [deque(row) for row in case.programs]
        self.busy_until = [Fraction(0) for _ in case.programs]
        self.there: dict[tuple[int, Data], Fraction] = {}  # (rank, data) -> when it is usable

    def time(self) -> Fraction:
        """Play it; the time at which the last rank is done."""
        while True:
            while any([self.step(r) for r in range(len(self.todo))]) or self.move():
                pass
            if not any(self.todo) and not self.pending():
                return max(self.busy_until)
            later = [t for t in [*self.busy_until, *self.there.values()] if t > self.now]
            if not later:
                raise Stuck
            self.now = min(later)

    def step(self, r: int) -> bool:
        """Let a rank do its next step if it can."""
        if not self.todo[r] or self.busy_until[r] > self.now:
            return False
        stage, kind, m = self.todo[r][0]
        if kind in GIVES:
            need = self.case.data(stage, kind, m)
            away = need is not None and self.case.rank[need[1]] != r
            if away and self.there.get((r, need), self.now + 1) > self.now:
                return False
            self.busy_until[r] = self.now + self.case.duration(stage, kind)
            self.ran(r, self.case.data(stage, kind, m, made=True))
        elif data := self.case.carried(stage, kind, m):
            self.post(r, data)
        self.todo[r].popleft()
        return True

    def ran(self, r: int, result: Data | None) -> None: ...

    def pending(self) -> bool:
        return False


class Buffered(Run):
    """Sends are taken off the sender's hands; the k-th message is for the k-th receive."""

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self.finished: list[tuple[Fraction, int, Data]] = []  # for compute only
        self.posted = defaultdict[tuple[int, int], list[Fraction]](list)
        self.slots = defaultdict[tuple[int, int], list[Data]](list)  # open receives
        self.arrivals = defaultdict[tuple[int, int], list[Fraction]](list)
        self.free = defaultdict[object, Fraction](Fraction)
        self.lines = defaultdict[object, deque[tuple[tuple[int, int], int]]](deque)
        if case.explicit:  # the lower rank's program fixes the order on half-duplex links
            for low, row in enumerate(case.programs):
                count: Counter[tuple[int, int]] = Counter()
                for data in filter(None, (case.carried(*action) for action in row)):
                    pair = case.ends(data)
                    if case.link(*pair)[2] and min(pair) == low:
                        # it stands for the k-th message of its direction, whatever that carries
                        self.lines[frozenset(pair)].append((pair, count[pair]))
                        count[pair] += 1

    def ran(self, r: int, result: Data | None) -> None:
        if not self.case.explicit and result and self.case.ends(result)[1] != r:
            self.finished.append((self.busy_until[r], r, result))
            self.finished.sort(key=itemgetter(0, 1))  # of one rank and time in their order

    def move(self) -> bool:
        """Compute only: what is finished leaves, in the order of the ranks."""
        if not self.finished or self.finished[0][0] > self.now:
            return False
        _, r, data = self.finished.pop(0)
        self.slots[self.case.ends(data)].append(data)
        self.post(r, data)
        return True

    def post(self, r: int, data: Data) -> None:
        pair = self.case.ends(data)
        if r == pair[1]:
            self.slots[pair].append(data)
            self.deliver(pair)
            return
        k = len(self.posted[pair])
        self.posted[pair].append(self.now)
        _, occupancy, half = self.case.link(*pair)
        line: object = (pair, k) if not occupancy else frozenset(pair) if half else pair
        if not (occupancy and half and self.case.explicit):
            self.lines[line].append((pair, k))
        self.serve(line)

    def serve(self, line: object) -> None:
        """The messages of a line take their turns as far as they are ready."""
        while self.lines[line]:
            pair, k = self.lines[line][0]
            if len(self.posted[pair]) <= k:
                return
            latency, occupancy, _ = self.case.link(*pair)
            self.free[line] = max(self.posted[pair][k], self.free[line]) + occupancy
            self.arrivals[pair].append(self.free[line] + latency)
            self.deliver(pair)
            self.lines[line].popleft()

    def deliver(self, pair: tuple[int, int]) -> None:
        for slot, time in zip(self.slots[pair], self.arrivals[pair], strict=False):
            self.there.setdefault((pair[1], slot), time)


class InOrder(Run):
    """Messages are rendezvous, on one stream per rank."""

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self.streams: list[deque[tuple[bool, Data]]] = [deque() for _ in case.programs]
        self.moving: dict[tuple[int, int], Fraction] = {}  # (sender, receiver) -> until when

    def post(self, r: int, data: Data) -> None:
        self.streams[r].append((r == self.case.ends(data)[0], data))

    def pending(self) -> bool:
        return any(self.streams)

    def move(self) -> bool:
        """Begin or end one transfer: of a send and a receive that are both first in line."""
        for pair, end in self.moving.items():
            if end <= self.now:
                for r in pair:
                    self.streams[r].popleft()
                del self.moving[pair]
                return True
        occupied = {rank for pair in self.moving for rank in pair}
        for sends, data in [stream[0] for stream in self.streams if stream]:
            pair = self.case.ends(data)
            peer = self.streams[pair[1]]
            if not sends or not peer or occupied & set(pair):
                continue
            peer_sends, slot = peer[0]
            if not peer_sends and self.case.ends(slot) == pair:
                latency, occupancy, _ = self.case.link(*pair)
                self.moving[pair] = self.there[pair[1], slot] = self.now + latency + occupancy
                return True
        return False
