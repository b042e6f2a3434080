"""Make the certificates of this folder anew. For makers only: checking them needs none of this.

    python -m proofs.pipeline_certificates.make [--only NAME]

The instances are those of the docs' tables of pipelines (``bench.pipeline_planner``) whose optimum
is above the closed form of ``verify``: with a memory limit of S activations, and without.
"""

from __future__ import annotations

import argparse
import lzma
import time

from bench.pipeline_planner import instance
from latecomer.synth.pipeline.plan import Solver, plan
from latecomer.synth.pipeline.problem import make, place
from latecomer.verify.pipeline import write
from proofs.pipeline_certificates.check import FOLDER, check_certificate, refutation_of

TIME_LIMIT_S = 900.0
INSTANCES = {
    f"{family}-{stages}x{n}" + ("" if limited else "-free"): (family, stages, n, limited)
    for family, stages, n, limited in [
        ("grid", 4, 12, True),
        ("uneven", 4, 12, True),
        ("grid", 6, 18, True),
        ("uneven", 6, 18, True),
        ("uneven", 8, 24, True),
        ("uneven", 8, 24, False),
        ("uneven", 8, 32, False),
    ]
}


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    for name, (family, stages, n, limited) in INSTANCES.items():
        if options.only not in name:
            continue
        limit = float(stages) if limited else None
        problem = make(n, instance(family, stages, 0, limit), place(stages, 1, "loop"))
        began_s = time.monotonic()
        found = plan(problem, solver=Solver(TIME_LIMIT_S, workers=2))
        if not found.certificate:
            print(f"{name}: no certificate ({found.claim})", flush=True)
            continue
        path = FOLDER / f"{name}.json"
        write(found.schedule, path)
        text = "".join(f"{line}\n" for line in found.certificate)
        refutation_of(path).write_bytes(lzma.compress(text.encode(), preset=9))
        took_s = time.monotonic() - began_s
        print(f"{name}: {check_certificate(path)}; made in {took_s:.0f} s", flush=True)


if __name__ == "__main__":
    main()
