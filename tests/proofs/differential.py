"""The extracted checker against ``verify``, on random schedules and mutants of right ones.

    python -m tests.proofs.differential [--count 100000] [--seed 1] [--family pipeline]

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
from typing import Any

from tests.verify.builders import Document
from tests.verify.mutants import mutant, pipeline_mutant, random_schedule
from verify import check, decode
from verify.core.verdict import Verdict
from verify.kernel import differs, judge, pipeline_differs
from verify.pipeline.check import check as check_pipeline
from verify.pipeline.format import decode as decode_pipeline

BATCH = 2000


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
            doc["programs"] = [
                [action for action in program if "_" not in action and "SHARD" not in action]
                for program in doc["programs"]
            ]
        for link in doc["situation"].get("links", ()):
            if rng.random() < 0.95:
                link["occupancy"] = 0
        yield doc


def at_the_bound_with_absences(answer: dict[str, Any], report: Any) -> bool:
    """Whether nothing but ranks that are absent again keeps a collective from being optimal."""
    return bool(
        answer.get("accepted")
        and "completion_rounds" in answer
        and answer["completion_rounds"] == answer["lower_bound"]
        and report.optimal is not True
    )


FAMILIES: dict[str, tuple[Callable[..., Any], ...]] = {
    "collective": (schedules, decode, check, differs),
    "pipeline": (pipelines, decode_pipeline, check_pipeline, pipeline_differs),
}


def compare(family: str, count: int, seed: int) -> tuple[Counter[str], list[str]]:
    """How often each property was refuted, and the disagreements.

    ``outside`` counts what the theorems are not about.
    """
    make, decoded, checked, difference = FAMILIES[family]
    documents = make(random.Random(seed))
    seen: Counter[str] = Counter()
    wrong: list[str] = []
    while seen["schedules"] < count and not wrong:
        batch = islice(documents, min(BATCH, count - seen["schedules"]))
        texts = [json.dumps(doc).encode() for doc in batch]
        for text, answer in zip(texts, judge(texts), strict=True):
            seen["schedules"] += 1
            if "outside" in answer:
                seen["outside"] += 1
                continue
            report = checked(decoded(text))
            if found := difference(answer, report):
                wrong.append(f"{found}: {text.decode()}")
            seen["accepted"] += answer.get("accepted", False)
            seen["optimal"] += answer.get("optimal") is True
            seen["optimal but for absences"] += at_the_bound_with_absences(answer, report)
            seen.update(
                name for name, result in report.results.items() if result.verdict is Verdict.REFUTED
            )
    return seen, wrong


def main() -> None:
    """Run from the command line; exit code 1 at the first disagreement."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--family", choices=FAMILIES, default="collective")
    options = parser.parse_args()
    began = time.monotonic()
    seen, wrong = compare(options.family, options.count, options.seed)
    print(f"seed {options.seed}, {time.monotonic() - began:.0f} s: {dict(seen)}")
    print(wrong[0] if wrong else "no disagreement")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
