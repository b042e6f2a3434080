"""Jobs that stand still, and what a recorder would have of them: a model of ranks that block.

Each rank does its operations in order and waits for each. A collective is over when all members of
its group are in it with the same signature; a send when its receive is there. What is recorded is
what ProcessGroupNCCL records, version 2.10. The model shares nothing with what it is to test.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

Groups = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class Step:
    """Something that a rank does."""

    group: str = ""
    kind: str = "all_reduce"  # or "sleep": it does no more; "send", "recv"
    numel: int = 8
    dtype: str = "Float"
    peer: int | None = None
    is_stuck: bool = False  # this rank never gets out of it


@dataclass
class Recorded:
    """A step that a rank has entered."""

    step: Step
    record: int
    sequence: int
    is_done: bool = False


@dataclass
class Model:
    """Runs the programs of all ranks until nothing goes on."""

    groups: Groups
    programs: dict[int, list[Step]]
    recorded: dict[int, list[Recorded]] = field(default_factory=lambda: defaultdict(list))

    def run(self) -> Model:
        """As far as it gets."""
        position = dict.fromkeys(self.programs, 0)
        has_moved = True
        while has_moved:
            has_moved = False
            for rank, program in self.programs.items():
                self._enter(rank, program, position[rank])
            for rank, program in self.programs.items():
                if self._is_over(rank, program, position[rank]):
                    position[rank] += 1
                    has_moved = True
        return self

    def _enter(self, rank: int, program: list[Step], position: int) -> None:
        has_entered = len(self.recorded[rank]) > position
        if has_entered or position >= len(program) or program[position].kind == "sleep":
            return
        step = program[position]
        before = [
            each
            for each in self.recorded[rank]
            if each.step.group == step.group and (each.step.peer is None) == (step.peer is None)
        ]
        self.recorded[rank].append(Recorded(step, position, len(before) + 1))

    def _is_over(self, rank: int, program: list[Step], position: int) -> bool:
        if len(self.recorded[rank]) <= position or position >= len(program):
            return False
        own = self.recorded[rank][position]
        if own.step.is_stuck:
            return False
        if own.step.peer is not None:
            own.is_done = own.is_done or self._meets(rank, own)
        else:
            own.is_done = all(self._is_in(member, own) for member in self.groups[own.step.group])
        return own.is_done

    def _is_in(self, member: int, own: Recorded) -> bool:
        step = own.step
        return any(
            (other.step.group, other.sequence, other.step.kind, other.step.numel, other.step.dtype)
            == (step.group, own.sequence, step.kind, step.numel, step.dtype)
            for other in self.recorded[member]
            if other.step.peer is None
        )

    def _meets(self, rank: int, own: Recorded) -> bool:
        assert own.step.peer is not None
        theirs = self.recorded[own.step.peer]
        other = theirs[-1] if theirs else None
        if other is None or other.step.peer != rank or other.step.numel != own.step.numel:
            return False
        if {own.step.kind, other.step.kind} != {"send", "recv"}:
            return False
        other.is_done = True
        return True

    def dumps(self) -> dict[int, dict]:
        """By rank, what its recorder has."""
        names = {name: str(number) for number, name in enumerate(self.groups)}
        dumps = {}
        for rank in self.programs:
            own = {name: ranks for name, ranks in self.groups.items() if rank in ranks}
            entries = [self._entry(rank, each, names) for each in self.recorded[rank]]
            config = {
                names[name]: {"name": names[name], "desc": name, "ranks": str(list(ranks))}
                for name, ranks in own.items()
            }
            dumps[rank] = {
                "version": "2.10",
                "entries": entries,
                "pg_config": config,
                "pg_status": {},
            }
        return dumps

    def _entry(self, rank: int, each: Recorded, names: dict[str, str]) -> dict:
        step = each.step
        ranks = self.groups[step.group]
        kind = step.kind
        if step.peer is not None:
            arrow = "->" if kind == "send" else "<-"
            kind = f"{kind} {ranks.index(rank)}{arrow}{ranks.index(step.peer)}"
        return {
            "record_id": each.record,
            "pg_id": int(names[step.group]),
            "process_group": (names[step.group], step.group),
            "collective_seq_id": 0 if step.peer is not None else each.sequence,
            "p2p_seq_id": each.sequence if step.peer is not None else 0,
            "op_id": each.record,
            "profiling_name": f"nccl:{kind}",
            "time_created_ns": 1_000_000_000 + 1000 * each.record + rank,
            "input_sizes": [[step.numel]],
            "input_dtypes": [step.dtype],
            "output_sizes": [[step.numel]],
            "output_dtypes": [step.dtype],
            "state": "completed" if each.is_done else "scheduled",
            "time_discovered_started_ns": None,
            "time_discovered_completed_ns": None,
            "retired": each.is_done,
            "timeout_ms": 600_000,
            "is_p2p": step.peer is not None,
        }
