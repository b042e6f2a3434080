"""What NCCL's RAS reports of a job: a model of ranks that launch ahead, and both of RAS's forms.

A rank launches collectives in the order of its program, up to ``ahead`` beyond the last that is
over; one is over when all members of its communicator have launched it. The forms are written as
NCCL's ``src/ras/client_support.cc`` does. The model shares nothing with what it is to test.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import dataclass, field

KINDS = ("AllReduce", "AllGather", "ReduceScatter", "Broadcast")
Program = list[tuple[str, str]]  # communicator, kind; a kind "sleep" does no more


@dataclass
class RasJob:
    """Communicators by name, each rank's program, and who is lost: "unresponsive" or "dead"."""

    groups: dict[str, tuple[int, ...]]
    programs: dict[int, Program]
    lost: dict[int, str] = field(default_factory=dict)
    errors: dict[int, int] = field(default_factory=dict)  # by rank, an ncclResult_t
    ahead: int = 1
    launched: dict[int, int] = field(default_factory=lambda: defaultdict(int))

    def run(self, most: int | None = None) -> RasJob:
        """As far as it gets; ``most``: no rank has launched more than so many."""
        has_moved = True
        while has_moved:
            has_moved = False
            for rank, program in self.programs.items():
                at = self.launched[rank]
                if at == len(program) or at == most or program[at][1] == "sleep":
                    continue
                over = sum(self._is_over(rank, place) for place in range(at))
                if at - over < self.ahead:
                    self.launched[rank] += 1
                    has_moved = True
        return self

    def _is_over(self, rank: int, place: int) -> bool:
        name, _ = self.programs[rank][place]
        number = sum(group == name for group, _ in self.programs[rank][: place + 1])
        return all(self._count(member, name) >= number for member in self.groups[name])

    def _count(self, rank: int, name: str) -> int:
        return sum(group == name for group, _ in self.programs[rank][: self.launched[rank]])

    def counts(self, rank: int, name: str) -> dict[str, int]:
        """What a rank has launched in a communicator, by kind."""
        program = self.programs[rank][: self.launched[rank]]
        done = Counter(kind for group, kind in program if group == name)
        return {kind: done[kind] for kind in KINDS}

    def hash_of(self, name: str) -> int:
        """Of a communicator, as NCCL's logs have it."""
        return 0xABC0000000000000 + list(self.groups).index(name)

    def as_json(self, *, without_comma: bool = False, taken: str = "2026-01-01 00:00:00") -> bytes:
        """As ``ncclras -f json`` prints it, or NCCL 2.28 does."""
        communicators = []
        for name, members in self.groups.items():
            ranks, missing = [], []
            for local, rank in enumerate(members):
                what = {"rank": local, "host": f"node{rank // 4}", "pid": 1000 + rank}
                what |= {"cuda_dev": rank % 4, "nvml_dev": rank % 4}
                if rank in self.lost:
                    is_dead = self.lost[rank] == "dead"
                    status = {"unresponsive": True, "considered_dead": is_dead}
                    missing.append(what | {"status": status})
                else:
                    status = {"init_state": 0, "async_error": self.errors.get(rank, 0)}
                    counts = {"collective_counts": self.counts(rank, name)}
                    ranks.append(what | {"status": status} | counts)
            communicators.append(
                {
                    "hash": f"{self.hash_of(name):#x}",
                    "secondary_hash": "0x1:0x2",
                    "size": len(members),
                    "ranks_count": len(ranks),
                    "missing_ranks_count": len(missing),
                    "ranks": ranks,
                    "missing_ranks": missing,
                }
            )
        report = {
            "nccl_version": "2.28.9",
            "timestamp": taken,
            "communicators_count": len(communicators),
            "communicators": communicators,
            "ras": {"collection_time_sec": 0.002, "timeouts_count": 0},
        }
        text = json.dumps(report, indent=2)
        if without_comma:
            lines = text.split("\n")
            for number, line in enumerate(lines[1:], 1):
                is_missing = '"unresponsive"' in lines[min(number + 1, len(lines) - 1)]
                if '"status"' in line and is_missing:
                    lines[number - 1] = lines[number - 1].rstrip(",")
            text = "\n".join(lines)
        return text.encode()

    def as_text(self) -> bytes:
        """As ``ncclras`` prints it; every communicator is a group of its own."""
        rows, errors, warnings = [], [], []
        for number, (name, members) in enumerate(self.groups.items()):
            title = f"#{number}-0 ({self.hash_of(name):016x})"
            missing = [local for local, rank in enumerate(members) if rank in self.lost]
            said = []
            if missing:
                said.append("INCOMPLETE")
                errors += [
                    f"{title} INCOMPLETE",
                    f"  Missing communicator data from {len(missing)}",
                ]
                errors += [f"  Rank {local} -- {self._at(members[local])}" for local in missing]
                errors.append("")
            different = [line for kind in KINDS for line in self._different(name, kind)]
            if different:
                said.append("MISMATCH")
                warnings += [f"{title} MISMATCH", *different, ""]
            size = len(members)
            there = size - len(missing)
            status = ",".join(said) or "OK"
            rows.append(f"{number:5}  {1:8}  {2:8}  {4:>8}  {size:8}  {there:8}  RUNNING  {status}")
        if dead := [rank for rank, how in self.lost.items() if how == "dead"]:
            processes = [
                f"  Process {1000 + rank} on node node{rank // 4} managing GPU {rank % 4}"
                for rank in dead
            ]
            said = f"  {len(dead)} job processes are considered dead"
            errors = ["DEAD", said, *processes, "", *errors]
        head = ["NCCL version 2.28.9 compiled with CUDA 12.9", "CUDA runtime version 12090", ""]
        table = "Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors"
        units = "    #  in group  per comm  per node  per comm  in group"
        summary = ["Job summary", "===========", "", "Communicators... (0.00s)", "============="]
        below = ["Errors", "======", "", *errors, "Warnings", "========", "", *warnings]
        return "\n".join([*head, *summary, "", table, units, *rows, "", *below, ""]).encode()

    def _different(self, name: str, kind: str) -> list[str]:
        """Of a kind, who has launched how many, if that differs; few are listed."""
        members = self.groups[name]
        counts = {
            local: self.counts(rank, name)[kind]
            for local, rank in enumerate(members)
            if rank not in self.lost
        }
        if len(set(counts.values())) < 2:
            return []
        lines = [f"  Communicator ranks have different {kind} operation counts"]
        for count, many in Counter(counts.values()).most_common():
            did = f"launched up to operation {count}" if count else "not launched any operations"
            if many > 1:
                lines.append(f"  {many} ranks have {did}")
            if many <= 10 and many <= max(1, len(members) // 4):
                for local in (local for local, its in counts.items() if its == count):
                    what = f" has {did}" if many == 1 else ""
                    lines.append(f"  Rank {local}{what} -- {self._at(members[local])}")
        return lines

    def _at(self, rank: int) -> str:
        return f"GPU {rank % 4} managed by process {1000 + rank} on node node{rank // 4}"
