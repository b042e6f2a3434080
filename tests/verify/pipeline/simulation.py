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
        self.programs = []
        for row in doc["programs"]:
            self.programs.append([split(action) for action in row])
        self.instance: dict[str, Any] = doc["situation"]
        self.meta = doc["meta"]
        self.rank: dict[int, int] = {}
        for r, row in enumerate(self.programs):
            for stage, _, _ in row:
                self.rank.setdefault(stage, r)  # the lowest
        self.explicit = any(kind[:5] in ("SEND_", "RECV_") for _, kind, _ in self.all())
        self.awaits = any(kind.startswith("WAIT_") for _, kind, _ in self.all())

    def all(self) -> list[tuple[int, str, int]]:
        return [action for row in self.programs for action in row]

    def duration(self, stage: int, kind: str) -> Fraction:
        if kind == "B" and not self.instance.get("fused"):
            return self.duration(stage, "I") + self.duration(stage, "W")
        name = {"F": "forward", "I": "backward", "W": "weight", "B": "fused"}[kind]
        durations: list[Fraction] = self.instance[name]
        return durations[stage]

    def link(self, a: int, b: int) -> tuple[Fraction, Fraction, bool]:
        """Latency, occupancy, and whether the link is half-duplex."""
        for link in self.instance.get("links", []):
            if {int(x) for x in link["between"]} == {a, b}:
                half = link.get("duplex") == "half"
                return link.get("latency", 0), link.get("occupancy", 0), half
        return Fraction(0), Fraction(0), False

    def needs(self, stage: int, kind: str, m: int) -> Data | None:
        """What a compute action needs from another stage."""
        if kind == "F":
            return ("F", stage - 1, m) if stage > 0 else None
        if kind == "W" or stage == self.stages - 1:
            return None
        return ("B", stage + 1, m)

    def makes(self, stage: int, kind: str, m: int) -> Data | None:
        """What a compute action makes for another stage."""
        if kind == "F":
            return ("F", stage, m) if stage < self.stages - 1 else None
        if kind == "W" or stage == 0:
            return None
        return ("B", stage, m)

    def carried(self, stage: int, kind: str, m: int) -> Data | None:
        """What a SEND or RECV carries."""
        if kind[:5] not in ("SEND_", "RECV_"):
            return None
        letter = kind[-1]
        if kind[:4] == "SEND":
            return letter, stage, m
        return letter, stage - 1 if letter == "F" else stage + 1, m

    def ends(self, data: Data) -> tuple[int, int]:
        """The ranks that send and receive data."""
        letter, stage, _ = data
        return self.rank[stage], self.rank[stage + 1 if letter == "F" else stage - 1]


def judge(text: str | bytes) -> Judgement:
    """Property name -> whether it holds (None: nothing to say), and what was measured."""
    case = Case(text)
    if not _well_formed(case):
        return {"well_formed": False}
    once = _once(case)
    communication = _communication(case) if once else None
    matched = once and communication
    peaks = [_peak(row) for row in case.programs]
    limits = case.instance.get("memory")
    judgement: Judgement = {
        "well_formed": True,
        "exactly_once": once,
        "dependencies": _dependencies(case) if once else None,
        "loss_order": _losses(case),
        "communication": communication,
        "message_order": _message_order(case) if matched else None,
        "reduce_grad": _reduce(case) if once else None,
        "waits": _waits(case) if matched else None,
        "sharding": _sharding(case),
        "memory": limits is None or all(p <= k for p, k in zip(peaks, limits, strict=True)),
        "deadlock_free": None,
    }
    if not (matched and judgement["dependencies"] and judgement["waits"]):
        return judgement

    judgement["deadlock_free"] = False
    try:
        judgement["makespan"] = Buffered(case).time()
    except Stuck:
        return judgement

    judgement["deadlock_free"] = True
    judgement["peak_memory"] = peaks
    if case.explicit:
        try:
            judgement["makespan_in_order"] = InOrder(case).time()
        except Stuck:
            judgement["makespan_in_order"] = None
            if case.instance.get("sends", "rendezvous") == "rendezvous":
                judgement["deadlock_free"] = False
    return judgement


def _well_formed(case: Case) -> bool:
    for r, row in enumerate(case.programs):
        if not row:
            return False
        for stage, _, m in row:
            if stage >= case.stages or m >= case.n or case.rank[stage] != r:
                return False
    return set(case.rank) == set(range(case.stages))


def _once(case: Case) -> bool:
    count = Counter(case.all())
    for stage in range(case.stages):
        for m in range(case.n):
            times = [count[stage, kind, m] for kind in "FBIW"]
            if times not in ([1, 1, 0, 0], [1, 0, 1, 1]):
                return False
    return True


def _dependencies(case: Case) -> bool:
    """Each rank alone, with everything from other ranks there already."""
    for r, row in enumerate(case.programs):
        results: set[Data | None] = set()
        run: set[tuple[int, str, int]] = set()
        for stage, kind, m in row:
            if kind not in GIVES:
                continue
            need = case.needs(stage, kind, m)
            same_rank = need is not None and case.rank[need[1]] == r
            if same_rank and need not in results:
                return False
            before = {"F": None, "W": "I"}.get(kind, "F")
            if before is not None and (stage, before, m) not in run:
                return False
            run.add((stage, kind, m))
            results.add(case.makes(stage, kind, m))
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
            need = case.needs(stage, kind, m) if kind in GIVES else None
            if need is not None and case.rank[need[1]] != r:
                wanted[stage, f"RECV_{need[0]}", m] += 1
                wanted[need[1], f"SEND_{need[0]}", m] += 1
    messages = Counter(
        (stage, kind, m) for stage, kind, m in case.all() if case.carried(stage, kind, m)
    )
    if messages != wanted:
        return False

    for row in case.programs:
        for position, (stage, kind, m) in enumerate(row):
            computed = {(stage, letter, m) for letter in ("F" if kind[-1] == "F" else "IB")}
            if kind.startswith("SEND") and not computed & set(row[:position]):
                return False
            if kind.startswith("RECV") and not computed & set(row[position:]):
                return False
    return True


def _message_order(case: Case) -> bool:
    def between(a: int, b: int, verb: str) -> list[Data]:
        """The data from a to b, in the order in which it is sent or received."""
        data_in_order = []
        for stage, kind, m in case.programs[a if verb == "SEND" else b]:
            data = case.carried(stage, kind, m)
            if data and kind.startswith(verb) and case.ends(data) == (a, b):
                data_in_order.append(data)
        return data_in_order

    ranks = range(len(case.programs))
    return all(between(a, b, "SEND") == between(a, b, "RECV") for a in ranks for b in ranks)


def _texts(case: Case, letters: dict[str, str]) -> list[str]:
    """For each stage what happens there, one letter an action."""
    letter_of = dict.fromkeys(GIVES, "c") | letters
    texts = []
    for stage in range(case.stages):
        row = case.programs[case.rank[stage]]
        texts.append("".join(letter_of.get(kind, "") for s, kind, _ in row if s == stage))
    return texts


def _reduce(case: Case) -> bool:
    texts = _texts(case, {"REDUCE_GRAD": "g"})
    needless = not case.explicit and "g" not in "".join(texts)
    return needless or all(re.fullmatch("c*g", text) for text in texts)


def _waits(case: Case) -> bool:
    """Each rank alone: of one send begin and wait in turn, of reductions all in turn."""
    if not case.awaits:
        return True
    for row in case.programs:
        begun = defaultdict[object, list[str]](list)
        for stage, kind, m in row:
            what = kind.removeprefix("WAIT_")
            if what == "REDUCE_GRAD":
                begun["reductions"] += [what if kind == what else "", str(stage)]
            elif what.startswith("SEND_"):
                begun[what, stage, m].append(kind)
        reductions = begun.pop("reductions", [])
        turns = [reductions[i : i + 4] for i in range(0, len(reductions), 4)]
        if any(turn != ["REDUCE_GRAD", turn[1], "", turn[1]] for turn in turns):
            return False
        if any(kinds != [kinds[0], f"WAIT_{kinds[0]}"] for kinds in begun.values()):
            return False
    return True


def _sharding(case: Case) -> bool:
    texts = _texts(case, {"UNSHARD": "u", "RESHARD": "r"})
    return all(re.fullmatch("c*|(uc*r)*(uc*)?", text) for text in texts)


def _peak(row: list[tuple[int, str, int]]) -> Fraction:
    changes = [GIVES.get(kind, Fraction()) for _, kind, _ in row]
    return max(accumulate(changes, initial=Fraction()))


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
            need = self.case.needs(stage, kind, m)
            away = need is not None and self.case.rank[need[1]] != r
            if away and self.there.get((r, need), self.now + 1) > self.now:
                return False
            self.busy_until[r] = self.now + self.case.duration(stage, kind)
            self.ran(r, self.case.makes(stage, kind, m))
        elif data := self.case.carried(stage, kind, m):
            self.post(r, data)
        elif kind.startswith("WAIT_SEND_") and self.sending(r, (kind[-1], stage, m)):
            return False
        self.todo[r].popleft()
        return True

    def ran(self, r: int, result: Data | None) -> None: ...

    def pending(self) -> bool:
        return False

    def sending(self, r: int, data: Data) -> bool:
        """Whether a rank that waits for this send has to wait on."""
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
        if case.explicit:
            for low in range(len(case.programs)):
                self._order_half_duplex(low)

    def _order_half_duplex(self, low: int) -> None:
        """The lower rank's program fixes the order on half-duplex links."""
        count: Counter[tuple[int, int]] = Counter()
        for stage, kind, m in self.case.programs[low]:
            data = self.case.carried(stage, kind, m)
            if data is None:
                continue
            sender, receiver = self.case.ends(data)
            _, _, half = self.case.link(sender, receiver)
            if half and min(sender, receiver) == low:
                # it stands for the k-th message of its direction, whatever that carries
                pair = (sender, receiver)
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
        sender, receiver = self.case.ends(data)
        pair = (sender, receiver)
        if r == receiver:
            self.slots[pair].append(data)
            self.deliver(pair)
            return

        k = len(self.posted[pair])
        self.posted[pair].append(self.now)
        _, occupancy, half = self.case.link(sender, receiver)
        line: object = pair
        if not occupancy:
            line = (pair, k)  # what occupies nothing waits for nobody
        elif half:
            line = frozenset(pair)
        if not (occupancy and half and self.case.explicit):
            self.lines[line].append((pair, k))
        self.serve(line)

    def serve(self, line: object) -> None:
        """The messages of a line take their turns as far as they are ready."""
        while self.lines[line]:
            pair, k = self.lines[line][0]
            if len(self.posted[pair]) <= k:
                return
            sender, receiver = pair
            latency, occupancy, _ = self.case.link(sender, receiver)
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

    def sending(self, r: int, data: Data) -> bool:
        return (True, data) in self.streams[r]

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
            sender, receiver = self.case.ends(data)
            pair = (sender, receiver)
            peer_stream = self.streams[receiver]
            if not sends or not peer_stream or occupied & set(pair):
                continue
            peer_sends, slot = peer_stream[0]
            if not peer_sends and self.case.ends(slot) == pair:
                latency, occupancy, _ = self.case.link(sender, receiver)
                end = self.now + latency + occupancy
                self.moving[pair] = end
                self.there[receiver, slot] = end
                return True
        return False
