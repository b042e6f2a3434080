"""The extracted checker against ``verify``, on random schedules and mutants of right ones.

    python -m tests.proofs.differential [--count 100000] [--seed 1] [--family pipeline]

Families: collective, pipeline, blocks (programs of thread blocks), device (one kernel per rank).

Every property, every bound, every "optimal" and every makespan has to agree; the first disagreement
is printed with its schedule. Needs ``make proofs`` (or ``make -C proofs kernel``).
"""

import argparse
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, NamedTuple

from latecomer.verify import check, decode
from latecomer.verify.asynchronous.check import check as check_program
from latecomer.verify.asynchronous.kernel_model import encode
from latecomer.verify.asynchronous.model import BlockProgram
from latecomer.verify.asynchronous.msccl import SLOTS, sizes_of
from latecomer.verify.asynchronous.msccl_program import XmlLowering, placements
from latecomer.verify.asynchronous.msccl_xml import decode as decode_xml
from latecomer.verify.asynchronous.sizes import Sizes
from latecomer.verify.core.schedule import Schedule
from latecomer.verify.core.verdict import Result, Verdict
from latecomer.verify.device.check import check as check_device
from latecomer.verify.device.program import DeviceProgram
from latecomer.verify.kernel import (
    device_differs,
    differs,
    judge,
    pipeline_differs,
    programs_differ,
)
from latecomer.verify.pipeline.check import check as check_pipeline
from latecomer.verify.pipeline.format import decode as decode_pipeline
from tests.hunt.model_kind import program_of
from tests.hunt.model_programs import make as make_model
from tests.hunt.xml_programs import make as make_xml
from tests.proofs.device_programs import decoded_program, device_programs
from tests.verify.builders import Document
from tests.verify.mutants import mutant, pipeline_mutant, random_schedule

BATCH = 2000


class Case(NamedTuple):
    """What the checker gets, and what ``verify`` says: a report, or results by property."""

    text: bytes
    results: Callable[[], Any]


def schedules(rng: random.Random) -> Iterator[Document]:
    """Without end: mutants and random schedules in turn."""
    while True:
        yield mutant(rng)
        yield random_schedule(rng)


def pipelines(rng: random.Random) -> Iterator[Document]:
    """Right or wrong ones; most have no messages and no occupancy, as in the theorems."""
    while True:
        doc = pipeline_mutant(rng)
        if rng.random() < 0.95:
            doc["programs"] = [without_messages(program) for program in doc["programs"]]
        for link in doc["situation"].get("links", ()):
            if rng.random() < 0.95:
                link["occupancy"] = 0
        yield doc


def without_messages(program: list[str]) -> list[str]:
    """Only what a stage computes: no sends and receives, no sharding of parameters."""
    return [action for action in program if "_" not in action and "SHARD" not in action]


def of_documents(
    make: Callable[[random.Random], Iterator[Document]],
    decoded: Callable[[bytes], Any],
    checked: Callable[[Any], Any],
) -> Callable[[random.Random], Iterator[Case]]:
    """Cases of files that both read themselves."""

    def cases(rng: random.Random) -> Iterator[Case]:
        for document in make(rng):
            text = json.dumps(document).encode()
            yield Case(text=text, results=lambda text=text: checked(decoded(text)))

    return cases


def blocks(rng: random.Random) -> Iterator[Case]:
    """Programs of thread blocks, of the model and of MSCCL XML in turn, near right ones."""
    while True:
        draft = make_model(rng.getrandbits(40))
        sizes = Sizes(*draft["sizes"]) if draft["sizes"] is not None else None
        yield _of_program(program_of(draft), sizes)

        algorithm = decode_xml(make_xml(rng.getrandbits(40)).text())
        for placement in placements(algorithm):
            lowering = XmlLowering(algorithm, placement, SLOTS[algorithm.proto], "draft")
            program = lowering.program()
            if not lowering.refutations:
                yield _of_program(program, sizes_of(algorithm))


def _of_program(program: BlockProgram, sizes: Sizes | None) -> Case:
    return Case(
        text=encode(program, sizes),
        results=lambda: check_program(program, sizes)[0],
    )


def blocks_differ(answer: dict[str, Any], results: dict[str, Result]) -> str:
    """Of a program whose ends do not match the checker says nothing."""
    if "malformed" in answer:
        return f"it can't read the program ({answer['malformed']})"
    for name in ("connections_match", "signals_match"):
        if results[name].verdict is not Verdict.PROVED:
            return "accepted, whose ends do not match" if answer["accepted"] else ""
    return programs_differ([answer], results)


def at_the_bound_with_absences(answer: dict[str, Any], report: Any) -> bool:
    """Whether nothing but ranks that are absent again keeps a collective from being optimal."""
    return bool(
        answer.get("accepted")
        and "completion_rounds" in answer
        and answer["completion_rounds"] == answer["lower_bound"]
        and report.optimal is not True
    )


def check_decoded_program(decoded: tuple[DeviceProgram, Schedule]) -> Any:
    """What ``verify`` says of a program and its schedule."""
    program, schedule = decoded
    return check_device(program, schedule)


FAMILIES: dict[str, tuple[Callable[..., Iterator[Case]], Callable[..., str]]] = {
    "collective": (of_documents(schedules, decode, check), differs),
    "pipeline": (of_documents(pipelines, decode_pipeline, check_pipeline), pipeline_differs),
    "blocks": (blocks, blocks_differ),
    "device": (
        of_documents(device_programs, decoded_program, check_decoded_program),
        device_differs,
    ),
}


def compare(family: str, count: int, seed: int) -> tuple[Counter[str], list[str]]:
    """How often each property was refuted, and the disagreements.

    ``outside`` counts what the theorems are not about.
    """
    make, difference = FAMILIES[family]
    cases = make(random.Random(seed))
    counts: Counter[str] = Counter()
    disagreements: list[str] = []
    while counts["schedules"] < count and not disagreements:
        batch = list(islice(cases, min(BATCH, count - counts["schedules"])))
        answers = judge([case.text for case in batch])
        for case, answer in zip(batch, answers, strict=True):
            counts["schedules"] += 1
            if "outside" in answer:
                counts["outside"] += 1
                continue

            report = case.results()
            if problem := difference(answer, report):
                disagreements.append(f"{problem}: {case.text.decode()}")

            counts["accepted"] += answer.get("accepted", False)
            counts["optimal"] += answer.get("optimal") is True
            counts["optimal but for absences"] += at_the_bound_with_absences(answer, report)
            results = report if isinstance(report, dict) else report.results
            for name, result in results.items():
                if result.verdict is Verdict.REFUTED:
                    counts[name] += 1
    return counts, disagreements


def main() -> None:
    """Run from the command line; exit code 1 at the first disagreement."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--family", choices=FAMILIES, default="collective")
    options = parser.parse_args()

    began = time.monotonic()
    counts, disagreements = compare(options.family, options.count, options.seed)
    print(f"seed {options.seed}, {time.monotonic() - began:.0f} s: {dict(counts)}")
    print(disagreements[0] if disagreements else "no disagreement")
    sys.exit(bool(disagreements))


if __name__ == "__main__":
    main()
