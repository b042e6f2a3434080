"""What is shown of a schedule for a machine of two levels."""

from __future__ import annotations

from typing import Any

from latecomer.synth import show
from latecomer.synth.twolevel.search import CostedSchedule, TwoLevelAnswer
from latecomer.synth.units import format_bandwidth, format_bytes, format_seconds


def text(path: str, answer: TwoLevelAnswer) -> str:
    """What was written to ``path`` and what it was compared with."""
    machine = answer.machine
    winner = answer.winner
    late = f"rank {answer.late} late" if winner.schedule.late else "no straggler"
    links = [("inside", machine.inner), ("between", machine.outer)]
    rows = [
        f"{candidate.name:<22}{candidate.schedule.chunks:>7}"
        f"{candidate.report.completion_rounds:>8}{candidate.network_rounds:>9}"
        f"{format_seconds(candidate.seconds):>11}{format_seconds(candidate.overlapped_s):>12}"
        f"{format_seconds(candidate.waiting_s):>11}"
        for candidate in answer.candidates
    ]
    lines = [
        f"machine     {machine.nodes} nodes of {machine.per_node} ranks, "
        f"{machine.network_ports} network port{'s' * (machine.network_ports > 1)} each: "
        "kept to in every round",
        *(
            f"            {kind:<8} alpha = {format_seconds(link.alpha_s)}, "
            f"1/beta = {format_bandwidth(link.bandwidth)}"
            for kind, link in links
        ),
        f"predicted   for {format_bytes(answer.buffer_bytes)}, from the arrival of the late rank",
        f"  {'':<22}{'chunks':>7}{'rounds':>8}{'network':>9}{'time':>11}{'no barrier':>12}"
        f"{'wait':>11}",
        *show.marked(((number == 0, row) for number, row in enumerate(rows)), 0),
        *(f"  left out: {reason}" for reason in answer.left_out),
        f"lower bound {format_seconds(answer.bound)} with barriers and a chunk per message "
        f"(the winner takes {winner.seconds / answer.bound:.2f} times that);",
        f"            {format_seconds(answer.bytes_s)} for the bytes alone. "
        "Whether anything is faster is unknown.",
        "            (time: a barrier after every round; no barrier: every rank goes on when",
        "            it can; wait: before the arrival, hidden if the late rank is so late)",
    ]
    return show.text(path, f"{winner.name}, {show.size(winner.schedule)}, {late}", lines)


def facts(path: str, answer: TwoLevelAnswer) -> dict[str, Any]:
    """The facts of :func:`text`; seconds, bytes, bytes per second."""
    return {
        "file": path,
        "verdict": answer.winner.report.verdict.value,
        "machine": answer.machine,
        "late": answer.late,
        "bytes": answer.buffer_bytes,
        "winner": answer.winner.name,
        "candidates": [_candidate_json(candidate) for candidate in answer.candidates],
        "bound_s": answer.bound,
        "basis": answer.basis,
        "basis_reason": answer.reason,
        "bytes_s": answer.bytes_s,
        "left_out": answer.left_out,
    }


def _candidate_json(candidate: CostedSchedule) -> dict[str, Any]:
    return {
        "name": candidate.name,
        "chunks": candidate.schedule.chunks,
        "completion_rounds": candidate.report.completion_rounds,
        "network_rounds": candidate.network_rounds,
        "seconds": candidate.seconds,
        "overlapped_s": candidate.overlapped_s,
        "waiting_s": candidate.waiting_s,
        "bound_s": candidate.bound_s,
    }
