"""A naive judge of pipeline documents that shares no code with ``verify``: it runs them.

It reads the text with the plain ``json`` module and plays every rank step by step on a clock, with
queues of messages that carry what was sent, so that a wrong match is seen as wrong data. The other
properties are counted in the most literal way. Times are fractions.
"""

from __future__ import annotations

import json
import re
from collections import Counter, deque
from fractions import Fraction
from typing import Any

Judgement = dict[str, Any]
GIVES = {"F": Fraction(1), "I": Fraction(-1, 2), "W": Fraction(-1, 2), "B": Fraction(-1)}


class Stuck(Exception):
    """Nobody can go on, and somebody is not done."""


def parsed(action: str) -> tuple[int, str, int]:
    """(stage, kind, microbatch); the microbatch is -1 where there is none."""
    match = re.fullmatch(r"(\d+)(SEND_F|SEND_B|RECV_F|RECV_B|[FIWB]|[A-Z_]+)(\d*)", action)
    assert match is not None
    return int(match[1]), match[2], int(match[3] or -1)


class Case:
    """A document with what is asked of it most often."""

    def __init__(self, text: str | bytes) -> None:
        doc = json.loads(text, parse_float=Fraction, parse_int=Fraction)
        self.stages, self.n = int(doc["stages"]), int(doc["microbatches"])
        self.programs = [[parsed(action) for action in row] for row in doc["programs"]]
        self.situation, self.meta = doc["situation"], doc["meta"]
        self.rank = {}
        for r, row in enumerate(self.programs):
            for stage, _, _ in row:
                self.rank.setdefault(stage, r)
        self.explicit = any("_" in kind and "GRAD" not in kind for _, kind, _ in self.all())

    def all(self) -> list[tuple[int, str, int]]:
        return [action for row in self.programs for action in row]

    def duration(self, stage: int, kind: str) -> Fraction:
        s = self.situation
        if kind == "B":
            fused = s.get("fused")
            return fused[stage] if fused else s["backward"][stage] + s["weight"][stage]
        return s[{"F": "forward", "I": "backward", "W": "weight"}[kind]][stage]

    def link(self, a: int, b: int) -> tuple[Fraction, Fraction, bool]:
        for link in self.situation.get("links", []):
            if {int(x) for x in link["between"]} == {a, b}:
                half = link.get("duplex") == "half"
                return link.get("latency", 0), link.get("occupancy", 0), half
        return Fraction(0), Fraction(0), False

    def data(self, stage: int, kind: str, m: int) -> tuple[str, int, int] | None:
        """What a compute action needs from elsewhere: (letter, stage that makes it, microbatch)."""
        if kind == "F" and stage > 0:
            return "F", stage - 1, m
        if kind in "IB" and stage < self.stages - 1:
            return "B", stage + 1, m
        return None

    def makes(self, stage: int, kind: str, m: int) -> tuple[str, int, int] | None:
        """What it makes for another stage."""
        if kind == "F" and stage < self.stages - 1:
            return "F", stage, m
        if kind in "IB" and stage > 0:
            return "B", stage, m
        return None

    def goes_to(self, letter: str, stage: int) -> int:
        return self.rank[stage + 1 if letter == "F" else stage - 1]


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
    limits = case.situation.get("memory")
    found["memory"] = limits is None or all(p <= k for p, k in zip(peaks, limits, strict=True))
    if not (said and found["dependencies"]):
        return {**found, "deadlock_free": None}
    try:
        found["makespan"] = buffered(case)
        found["deadlock_free"] = True
    except Stuck:
        return {**found, "deadlock_free": False}
    found["peak_memory"] = peaks
    if case.explicit:
        try:
            found["makespan_in_order"] = in_order(case)
        except Stuck:
            found["makespan_in_order"] = None
            if case.situation.get("sends", "rendezvous") == "rendezvous":
                found["deadlock_free"] = False
    return found


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
            if count[stage, "F", m] != 1:
                return False
            ways = count[stage, "B", m], count[stage, "I", m], count[stage, "W", m]
            if ways not in ((1, 0, 0), (0, 1, 1)):
                return False
    return True


def _dependencies(case: Case) -> bool:
    """Each rank alone, with everything from other ranks there already."""
    for r, row in enumerate(case.programs):
        made: set[tuple[str, int, int]] = set()
        run: set[tuple[int, str, int]] = set()
        for stage, kind, m in row:
            if kind not in GIVES:
                continue
            need = case.data(stage, kind, m)
            if need is not None and case.rank[need[1]] == r and need not in made:
                return False
            if kind in "IB" and (stage, "F", m) not in run:
                return False
            if kind == "W" and (stage, "I", m) not in run:
                return False
            run.add((stage, kind, m))
            result = case.makes(stage, kind, m)
            if result is not None:
                made.add(result)
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
    there = Counter(a for a in case.all() if a[1][:5] in ("SEND_", "RECV_"))
    if there != wanted:
        return False
    for row in case.programs:
        for position, (stage, kind, m) in enumerate(row):
            before, after = row[:position], row[position + 1 :]
            if kind == "SEND_F" and (stage, "F", m) not in before:
                return False
            if kind == "SEND_B" and not {(stage, "I", m), (stage, "B", m)} & set(before):
                return False
            if kind == "RECV_F" and (stage, "F", m) not in after:
                return False
            if kind == "RECV_B" and not {(stage, "I", m), (stage, "B", m)} & set(after):
                return False
    return True


def _message_order(case: Case) -> bool:
    for a in range(len(case.programs)):
        for b in range(len(case.programs)):
            sent = [
                (k[-1], s, m)
                for s, k, m in case.programs[a]
                if k.startswith("SEND") and case.goes_to(k[-1], s) == b
            ]
            received = [
                (k[-1], s - 1 if k[-1] == "F" else s + 1, m)
                for s, k, m in case.programs[b]
                if k.startswith("RECV") and case.rank[s - 1 if k[-1] == "F" else s + 1] == a
            ]
            if sent != received:
                return False
    return True


def _reduce(case: Case) -> bool:
    count = Counter(stage for stage, kind, _ in case.all() if kind == "REDUCE_GRAD")
    if not count and not case.explicit:
        return True
    for stage in range(case.stages):
        row = case.programs[case.rank[stage]]
        if count[stage] != 1:
            return False
        place = row.index((stage, "REDUCE_GRAD", -1))
        if any(s == stage and kind in GIVES for s, kind, _ in row[place:]):
            return False
    return True


def _sharding(case: Case) -> bool:
    for stage in range(case.stages):
        row = case.programs[case.rank[stage]]
        text = "".join(
            {"UNSHARD": "u", "RESHARD": "r"}.get(kind, "c" if kind in GIVES else "")
            for s, kind, _ in row
            if s == stage
        )
        if "u" in text:
            if not re.fullmatch(r"(uc*r)*(uc*)?", text):
                return False
        elif "r" in text:
            return False
    return True


def _peak(row: list[tuple[int, str, int]]) -> Fraction:
    held = peak = Fraction(0)
    for _, kind, _ in row:
        held += GIVES.get(kind, 0)
        peak = max(peak, held)
    return peak


class Rank:
    """One rank on the clock."""

    def __init__(self, program: list[tuple[int, str, int]]) -> None:
        self.todo = deque(program)
        self.busy_until = Fraction(0)
        self.inbox: dict[tuple[str, int, int], Fraction] = {}  # data -> when it is usable
        self.slots: dict[int, deque[tuple[str, int, int]]] = {}  # sender -> open receives
        self.stream: deque[tuple[str, int, tuple[str, int, int]]] = deque()


def _take(case: Case, rank: Rank, r: int, now: Fraction) -> tuple[str, int, tuple] | None:
    """Let a rank do its next step if it can: ('post', ...), ('ran', ...) or None."""
    if not rank.todo or rank.busy_until > now:
        return None
    stage, kind, m = rank.todo[0]
    if kind in GIVES:
        need = case.data(stage, kind, m)
        if need is not None and case.rank[need[1]] != r and rank.inbox.get(need, now + 1) > now:
            return None
        rank.busy_until = now + case.duration(stage, kind)
        rank.todo.popleft()
        return "ran", r, (stage, kind, m)
    rank.todo.popleft()
    return "post", r, (stage, kind, m)


def _next_time(times: list[Fraction], now: Fraction) -> Fraction:
    later = [t for t in times if t > now]
    if not later:
        raise Stuck
    return min(later)


def buffered(case: Case) -> Fraction:
    """Play it: sends are taken off the sender's hands; the time at which the last rank is done."""
    ranks = [Rank(row) for row in case.programs]
    finished: list[tuple[Fraction, int, tuple[str, int, int]]] = []  # for compute only
    lines: dict[object, deque] = {}
    free: dict[object, Fraction] = {}
    counts: Counter[tuple[int, int]] = Counter()
    for r, row in enumerate(case.programs):  # fixed order of messages on half-duplex links
        for stage, kind, m in row:
            if case.explicit and kind[:5] in ("SEND_", "RECV_"):
                sender, receiver, what = _message(case, r, stage, kind, m)
                low = min(sender, receiver)
                if case.link(sender, receiver)[2] and r == low:
                    # it stands for the k-th message of its direction, whatever that carries
                    k = counts[sender, receiver]
                    counts[sender, receiver] += 1
                    lines.setdefault((low, max(sender, receiver)), deque()).append((sender, k))
    posted: dict[tuple[int, int], list[tuple[Fraction, tuple[str, int, int]]]] = {}
    arrivals: dict[tuple[int, int], dict[int, Fraction]] = {}
    now = Fraction(0)

    def post(sender: int, receiver: int, what: tuple[str, int, int]) -> None:
        """A message is ready now."""
        queue = posted.setdefault((sender, receiver), [])
        queue.append((now, what))
        latency, occupancy, half = case.link(sender, receiver)
        there = arrivals.setdefault((sender, receiver), {})
        if not occupancy:
            there[len(queue) - 1] = now + latency
        elif not (half and case.explicit):
            line = frozenset((sender, receiver)) if half else (sender, receiver)
            free[line] = max(now, free.get(line, now)) + occupancy
            there[len(queue) - 1] = free[line] + latency
        else:
            _serve((min(sender, receiver), max(sender, receiver)))

    def _serve(line: tuple[int, int]) -> None:
        """A half-duplex link carries on in its fixed order as far as messages are ready."""
        while lines[line]:
            sender, k = lines[line][0]
            receiver = line[0] + line[1] - sender
            queue = posted.get((sender, receiver), [])
            if len(queue) <= k:
                return
            latency, occupancy, _ = case.link(*line)
            free[line] = max(queue[k][0], free.get(line, Fraction(0))) + occupancy
            arrivals.setdefault((sender, receiver), {})[k] = free[line] + latency
            lines[line].popleft()

    while True:
        moved = True
        while moved:
            moved = False
            for (sender, receiver), there in arrivals.items():
                for k in sorted(there):
                    if case.explicit:
                        slots = ranks[receiver].slots.get(sender, deque())
                        if len(slots) > k:
                            ranks[receiver].inbox.setdefault(slots[k], there[k])
                    else:
                        what = posted[sender, receiver][k][1]
                        ranks[receiver].inbox.setdefault(what, there[k])
            for r, rank in enumerate(ranks):
                step = _take(case, rank, r, now)
                if step is None:
                    continue
                moved = True
                _, _, (stage, kind, m) = step
                if kind in GIVES:
                    result = case.makes(stage, kind, m)
                    if not case.explicit and result and case.goes_to(*result[:2]) != r:
                        finished.append((rank.busy_until, r, result))
                elif kind[:5] in ("SEND_", "RECV_"):
                    sender, receiver, what = _message(case, r, stage, kind, m)
                    if r == sender:
                        post(sender, receiver, what)
                    else:
                        rank.slots.setdefault(sender, deque()).append(what)
            finished.sort(key=lambda f: (f[0], f[1]))
            if not moved and finished and finished[0][0] <= now:
                # compute only: what is finished leaves, in the order of the ranks
                _, r, what = finished.pop(0)
                post(r, case.goes_to(what[0], what[1]), what)
                moved = True
        if not any(rank.todo for rank in ranks):
            return max(rank.busy_until for rank in ranks)
        times = [rank.busy_until for rank in ranks]
        times += [t for there in arrivals.values() for t in there.values()]
        now = _next_time(times, now)


def _message(case: Case, r: int, stage: int, kind: str, m: int) -> tuple[int, int, tuple]:
    """(sender, receiver, data) of a SEND or RECV on rank r."""
    letter = kind[-1]
    if kind.startswith("SEND"):
        return r, case.goes_to(letter, stage), (letter, stage, m)
    source = stage - 1 if letter == "F" else stage + 1
    return case.rank[source], r, (letter, source, m)


def in_order(case: Case) -> Fraction:
    """Play it with rendezvous on one stream per rank; the time at which the last rank is done."""
    ranks = [Rank(row) for row in case.programs]
    moving: set[int] = set()  # ranks whose stream is occupied
    transfers: list[tuple[Fraction, int, int, tuple[str, int, int]]] = []
    now = Fraction(0)
    while True:
        moved = True
        while moved:
            moved = False
            for transfer in [t for t in transfers if t[0] <= now]:
                transfers.remove(transfer)
                end, sender, receiver, slot = transfer
                ranks[sender].stream.popleft()
                ranks[receiver].stream.popleft()
                moving -= {sender, receiver}
                ranks[receiver].inbox[slot] = end
                moved = True
            for r, rank in enumerate(ranks):
                step = _take(case, rank, r, now)
                if step is None:
                    continue
                moved = True
                _, _, (stage, kind, m) = step
                if kind[:5] in ("SEND_", "RECV_"):
                    sender, receiver, what = _message(case, r, stage, kind, m)
                    other = receiver if r == sender else sender
                    rank.stream.append((kind[:4], other, what))
            for r, rank in enumerate(ranks):
                if r in moving or not rank.stream or rank.stream[0][0] != "SEND":
                    continue
                other = rank.stream[0][1]
                peer = ranks[other]
                if other in moving or not peer.stream:
                    continue
                if peer.stream[0][0] == "RECV" and peer.stream[0][1] == r:
                    latency, occupancy, _ = case.link(r, other)
                    end = now + latency + occupancy
                    transfers.append((end, r, other, peer.stream[0][2]))
                    moving |= {r, other}
                    moved = True
        if not any(rank.todo or rank.stream for rank in ranks):
            return max(rank.busy_until for rank in ranks)
        times = [rank.busy_until for rank in ranks] + [t[0] for t in transfers]
        now = _next_time(times, now)
