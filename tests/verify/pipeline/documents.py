"""Right pipeline schedules as plain JSON documents, by the simplest textbook rules.

Nothing here knows ``synth``. ``with_messages`` writes the messages out by a dry run in which every
action takes one step, as PyTorch's own lowering does.
"""

import json
import random
import re
from typing import Any

from latecomer.verify.pipeline import PipelineReport, PipelineSchedule, check, decode
from tests.verify.builders import Document


def schedule_of(doc: Document) -> PipelineSchedule:
    return decode(json.dumps(doc).encode())


def report_of(doc: Document) -> PipelineReport:
    return check(schedule_of(doc))


def csv_of(doc: Document) -> str:
    """The programs as PyTorch writes them to a file."""
    return "".join(",".join(row) + "\r\n" for row in doc["programs"])


def document(
    programs: list[list[str]], microbatches: int, stages: int | None = None, **instance: Any
) -> Document:
    count = len(programs) if stages is None else stages
    default = {"forward": [8] * count, "backward": [10] * count, "weight": [5] * count}
    return {
        "format": "latecomer/1",
        "kind": "pipeline",
        "stages": count,
        "microbatches": microbatches,
        "situation": {**default, **instance},
        "programs": programs,
        "meta": {},
    }


def gpipe(stages: int, microbatches: int) -> list[list[str]]:
    programs = []
    for s in range(stages):
        programs.append([f"{s}{kind}{m}" for kind in "FB" for m in range(microbatches)])
    return programs


def one_f_one_b(stages: int, microbatches: int) -> list[list[str]]:
    programs = []
    for s in range(stages):
        warm = min(microbatches, stages - s)
        program = [f"{s}F{m}" for m in range(warm)]
        for m in range(microbatches):
            program.append(f"{s}B{m}")
            if warm + m < microbatches:
                program.append(f"{s}F{warm + m}")
        programs.append(program)
    return programs


def zero_bubble(stages: int, microbatches: int) -> list[list[str]]:
    """1F1B with the backward split; stage s delays its W by s microbatches."""
    programs = []
    for s, program in enumerate(one_f_one_b(stages, microbatches)):
        row: list[str] = []
        for action in program:
            _, kind, m = split(action)
            row.append(action if kind == "F" else f"{s}I{m}")
            if kind == "B" and m >= s:
                row.append(f"{s}W{m - s}")
        row += [f"{s}W{m}" for m in range(max(0, microbatches - s), microbatches)]
        programs.append(row)
    return programs


def looped(ranks: int, chunks: int, microbatches: int) -> list[list[str]]:
    """Breadth first over ``chunks`` stages per rank; stage s is on rank s mod ranks."""
    programs = []
    for r in range(ranks):
        stages = range(r, ranks * chunks, ranks)
        program = [f"{s}F{m}" for s in stages for m in range(microbatches)]
        program += [f"{s}B{m}" for s in reversed(stages) for m in range(microbatches)]
        programs.append(program)
    return programs


def vee(ranks: int, microbatches: int) -> list[list[str]]:
    """Two stages per rank, r and 2R-1-r; the middle pair of stages shares a rank."""
    programs = []
    for r in range(ranks):
        lower = r
        upper = 2 * ranks - 1 - r
        program = [f"{s}F{m}" for s in (lower, upper) for m in range(microbatches)]
        program += [f"{upper}{kind}{m}" for m in range(microbatches) for kind in "IW"]
        program += [f"{lower}B{m}" for m in range(microbatches)]
        programs.append(program)
    return programs


def split(action: str) -> tuple[int, str, int]:
    """(stage, kind, microbatch) of an action; the microbatch is -1 where there is none."""
    match = re.fullmatch(r"(\d+)([A-Z_]+)(\d*)", action)
    assert match is not None
    return int(match[1]), match[2], int(match[3] or -1)


def with_messages(programs: list[list[str]], stages: int, microbatches: int) -> list[list[str]]:
    """The same with SEND, RECV and REDUCE_GRAD; ``programs`` have none and no cycle."""
    rank_of = {split(action)[0]: rank for rank, row in enumerate(programs) for action in row}
    left = [list(program) for program in programs]
    done: list[list[str]] = [[] for _ in programs]
    backwards = dict.fromkeys(range(stages), microbatches)
    while any(left):
        for rank, queue in enumerate(left):
            if not queue:
                continue
            stage, kind, m = split(queue[0])
            if kind == "F":
                letter = "F"
                makers = "F"
                source = stage - 1
                target = stage + 1
            else:
                letter = "B"
                makers = "IB"
                source = stage + 1
                target = stage - 1

            if kind != "W" and 0 <= source < stages:
                if rank_of[source] == rank:
                    needed = [f"{source}{maker}{m}" for maker in makers]
                else:
                    needed = [f"{stage}RECV_{letter}{m}"]
                if not any(action in done[rank] for action in needed):
                    continue

            done[rank].append(queue.pop(0))
            if kind != "W" and 0 <= target < stages and rank_of[target] != rank:
                done[rank].append(f"{stage}SEND_{letter}{m}")
                done[rank_of[target]].append(f"{target}RECV_{letter}{m}")

            if kind in "WB":
                backwards[stage] -= 1
                if not backwards[stage]:
                    done[rank].append(f"{stage}REDUCE_GRAD")
    return done


def with_waits(programs: list[list[str]]) -> list[list[str]]:
    """The same, a wait behind each REDUCE_GRAD, and those for what is sent where PyTorch has them.

    The activation was used where its gradient comes back; gradients are waited for at the end.
    """
    result = []
    for row in programs:
        waiting: list[str] = []
        at_the_end = []
        for action in row:
            waiting.append(action)
            stage, kind, m = split(action)
            if kind == "REDUCE_GRAD":
                waiting.append(f"{stage}WAIT_REDUCE_GRAD")
            elif kind == "SEND_B":
                at_the_end.append(f"{stage}WAIT_SEND_B{m}")
            elif kind in ("I", "B") and f"{stage}SEND_F{m}" in row:
                waiting.append(f"{stage}WAIT_SEND_F{m}")
        result.append(waiting + at_the_end)
    return result


def all_right() -> dict[str, Document]:
    """Schedules of every shape at small sizes, compute only and with messages, by name."""
    shapes = {
        "single": (gpipe(1, 3), 3, 1),
        "gpipe": (gpipe(3, 4), 4, 3),
        "1f1b": (one_f_one_b(4, 6), 6, 4),
        "zero-bubble": (zero_bubble(4, 6), 6, 4),
        "few-microbatches": (zero_bubble(4, 2), 2, 4),
        "looped": (looped(2, 2, 3), 3, 4),
        "looped-3": (looped(3, 2, 3), 3, 6),
        "vee": (vee(2, 3), 3, 4),
    }
    documents = {}
    for name, (programs, microbatches, stages) in shapes.items():
        documents[name] = document(programs, microbatches, stages)
        messages = with_messages(programs, stages, microbatches)
        documents[f"{name}-messages"] = document(messages, microbatches, stages)
        documents[f"{name}-waits"] = document(with_waits(messages), microbatches, stages)
        if len(programs) > 1:
            links = [{"between": [0, 1], "latency": 7, "occupancy": 2, "duplex": "half"}]
            documents[f"{name}-slow"] = document(messages, microbatches, stages, links=links)
    return documents


def in_a_random_instance(doc: Document, rng: random.Random) -> Document:
    """The same programs with random durations, links, limits and kind of sends."""
    ranks = len(doc["programs"])
    stages = doc["stages"]

    def number(high: int) -> int | float:
        return rng.choice([rng.randint(0, high), rng.randint(0, 10 * high) / 10])

    instance: dict[str, Any] = {}
    for name in ("forward", "backward", "weight"):
        instance[name] = [number(9) for _ in range(stages)]
    if rng.random() < 0.3:
        instance["fused"] = [number(15) for _ in range(stages)]
    pairs = [(a, b) for b in range(ranks) for a in range(b)]
    instance["links"] = []
    for pair in rng.sample(pairs, rng.randint(0, len(pairs))):
        link = {
            "between": list(rng.choice([pair, pair[::-1]])),
            "latency": number(12),
            "occupancy": rng.choice([0, number(6)]),
            "duplex": rng.choice(["full", "half"]),
        }
        instance["links"].append(link)
    if rng.random() < 0.4:
        instance["memory"] = [rng.randint(2, 16) / 2 for _ in range(ranks)]
    instance["sends"] = rng.choice(["rendezvous", "buffered"])
    return {**doc, "situation": instance}
