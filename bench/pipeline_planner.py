"""How good the pipeline planner is, against lower bounds, named schedules and Adaptra's simulator.

    python -m bench.pipeline_planner free      no memory limit
    python -m bench.pipeline_planner capped    limits of S and of 2 S activations per rank
    python -m bench.pipeline_planner links     messages that hold their link, full and half duplex
    python -m bench.pipeline_planner quick     milliseconds of the quick methods

Situations follow the grid of the source's public test (``pipeline_simulator/test_schedule.py``):
durations around a base between 10 and 30 that differ by stage, the same latency below 20 on every
link; besides, ``uneven`` stages (each 6 to 14) and several slow links (10, 20 or 30 on a third of
the links). All are seeded. Tables are Markdown; ratios are to the best lower bound there is.

``--peer DIR`` is a checkout of github.com/wutianyuan1/PipeMorph: its policy and its ILP (which
needs ``pulp``; 30 s) plan the same situations, and their orders are measured as ours are. They know
no memory limit and no occupancy. Without it these columns say so.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from latecomer.synth.pipeline.answer import PipelineAnswer
from latecomer.synth.pipeline.evaluate import makespan
from latecomer.synth.pipeline.listing import Rules, greedy
from latecomer.synth.pipeline.plan import Solver, plan
from latecomer.synth.pipeline.portfolio import best_greedy, portfolio
from latecomer.synth.pipeline.problem import Orders, Problem, make, place
from latecomer.verify.pipeline.schedule import Action, Duplex, Instance, Kind, Link

SIZES = ((3, 6), (4, 12), (6, 18), (8, 24), (8, 32))
FAMILIES = ("grid", "uneven")
ABSENT = "no --peer"
TOO_LARGE = "too large"
MOST_ILP = 3 * 4 * 12
"""Actions up to which the peer's ILP is asked: its 30 s do not count the building of the model."""


def instance(
    family: str,
    stages: int,
    seed: int,
    memory: float | None = None,
    occupancy: int = 0,
    duplex: Duplex = "full",
) -> Instance:
    rng = random.Random(f"{family} {stages} {seed}")
    if family == "grid":
        base = rng.choice([10, 15, 20, 25, 30])
        means = [rng.randint(base, 2 * base - 1) for _ in range(3)]

        def around(mean: int) -> tuple[int, ...]:
            return tuple(max(1, round(rng.gauss(mean, 2))) for _ in range(stages))

        forward = around(means[0])
        backward = around(means[1])
        weight = around(means[2])
        delays = [rng.randint(1, 20)] * (stages - 1)
    else:

        def uneven() -> tuple[int, ...]:
            return tuple(rng.randint(6, 14) for _ in range(stages))

        forward = uneven()
        backward = uneven()
        weight = uneven()
        slow = rng.sample(range(stages - 1), max(1, (stages - 1) // 3))
        delays = [rng.choice([10, 20, 30]) if i in slow else 0 for i in range(stages - 1)]

    links = []
    for i, delay in enumerate(delays):
        if delay or occupancy:
            links.append(
                Link(between=(i, i + 1), latency=delay, occupancy=occupancy, duplex=duplex)
            )
    return Instance(
        forward=forward,
        backward=backward,
        weight=weight,
        links=tuple(links),
        memory=None if memory is None else (memory,) * stages,
    )


class Peer:
    """The public simulator of the source, where it is there."""

    def __init__(self, folder: Path | None) -> None:
        self.there = folder is not None
        self.has_ilp = False
        if folder is None:
            print("peer: absent, its columns are empty (--peer DIR)", file=sys.stderr)
            return
        sys.path.insert(0, str(folder / "zerobubble"))
        try:
            import pulp  # noqa: F401

            self.has_ilp = True
        except ImportError:
            print("peer: pulp is not installed, so its ILP is not run", file=sys.stderr)

    def policy(self, problem: Problem) -> str | float:
        """The makespan of its policy's order, as we measure it."""
        if not self.there:
            return ABSENT
        from pipeline_simulator import batches, policy, schedule

        costs = problem.costs
        stages = problem.stages
        batches.update_times(
            list(costs.forward), list(costs.backward), list(costs.weight), [1] * stages
        )
        delays = {(i, i + 1): problem.between[i][0] for i in range(stages - 1)}
        simulator = schedule.PipelineSimulator(
            stages, problem.microbatches, policy.OurPolicy(stages), [], delays, True
        )
        simulator.simulate()
        kinds: dict[str, Kind] = {"F": "F", "B": "I", "W": "W"}
        orders: Orders = []
        for stage, done in enumerate(simulator.history_queues):
            orders.append([Action(stage, kinds[batch.type], batch.batch_idx) for batch in done])
        return makespan(problem, orders)

    def ilp(self, problem: Problem) -> str | float:
        """The makespan that its ILP reports after 30 s, where all links are alike."""
        if not self.has_ilp:
            return ABSENT if not self.there else "no pulp"
        if 3 * problem.stages * problem.microbatches > MOST_ILP:
            return TOO_LARGE
        from pipeline_simulator import ilp_solver

        costs = problem.costs
        iteration_time, _ = ilp_solver.get_exact_solution(
            "iter_time", problem.stages, problem.microbatches,
            list(costs.forward), list(costs.backward), list(costs.weight),
            problem.between[0][0],
        )  # fmt: skip
        return iteration_time


def ratio(value: str | float, bound: float) -> str:
    """For a cell; why there is no value, instead of one, stays as it is."""
    if isinstance(value, str):
        return value
    return f"{value / bound:.3f}"


def proof(answer: PipelineAnswer) -> str:
    """Why nothing is shorter: the bound that ``verify`` recomputes, a certificate, or a solver."""
    if not answer.optimal:
        return f"gap {answer.gap:.1%}"
    if answer.report.optimal is True:
        return "bound"
    return "certificate" if answer.certificate else "CP-SAT"


def row(*cells: object) -> None:
    print("| " + " | ".join(map(str, cells)) + " |", flush=True)


def head(*names: str) -> None:
    row(*names)
    rules = ["---"] * len(names)
    row(*rules)


def problems(
    options: argparse.Namespace, **options_of_instance: object
) -> Iterator[tuple[str, int, int, int, Problem]]:
    for family in options.families:
        for stages, n in options.sizes:
            for seed in range(options.first, options.first + options.seeds):
                drawn_instance = instance(family, stages, seed, **options_of_instance)  # type: ignore[arg-type]
                yield family, stages, n, seed, make(n, drawn_instance, place(stages, 1, "loop"))


def free(options: argparse.Namespace) -> None:
    peer = Peer(options.peer)
    solver = Solver(options.time_limit, workers=options.workers)
    head("situation", "S x N", "seed", "bound", "zero-bubble", "1f1b", "peer's policy",
         "peer's ILP", "ours", "by", "optimal by", "s")  # fmt: skip

    for family, stages, n, seed, problem in problems(options):
        quick = {c.method: c.makespan for c in portfolio(problem).candidates}
        answer = plan(problem, solver=solver)
        bound = float(answer.bound)
        is_alike = len({latency for latency, *_ in problem.between}) == 1
        row(
            family, f"{stages} x {n}", seed, f"{bound:g}",
            *(ratio(quick[name], bound) for name in ("zero-bubble", "1f1b")),
            ratio(peer.policy(problem), bound),
            ratio(peer.ilp(problem), bound) if is_alike and options.ilp else "not run",
            ratio(answer.measures.makespan, bound), answer.method,
            proof(answer), f"{answer.seconds:.1f}",
        )  # fmt: skip


def capped(options: argparse.Namespace) -> None:
    solver = Solver(options.time_limit, workers=options.workers)
    head("limit", "situation", "S x N", "seed", "bound", "1f1b", "zero-bubble", "adaptra",
         "greedy", "ours", "better than the best of them by", "optimal by", "s")  # fmt: skip

    gains = []
    for factor in options.limits:
        for family in options.families:
            for stages, n in options.sizes:
                for seed in range(options.first, options.first + options.seeds):
                    drawn_instance = instance(family, stages, seed, factor * stages)
                    problem = make(n, drawn_instance, place(stages, 1, "loop"))
                    quick = {c.method: c.makespan for c in portfolio(problem).candidates}
                    answer = plan(problem, solver=solver)

                    bound = float(answer.bound)
                    ours = float(answer.measures.makespan)
                    gain = min(quick.values()) / ours - 1

                    gains.append(gain)
                    row(
                        f"{factor:g} S", family, f"{stages} x {n}", seed, f"{bound:g}",
                        *(ratio(quick[m], bound) for m in
                          ("1f1b", "zero-bubble", "adaptra", "greedy")),
                        ratio(ours, bound), f"{gain:.1%}",
                        proof(answer), f"{answer.seconds:.1f}",
                    )  # fmt: skip
    print(f"\nmean gain over the best quick method: {statistics.mean(gains):.1%}")


def links(options: argparse.Namespace) -> None:
    solver = Solver(options.time_limit, workers=options.workers)
    head("link", "situation", "S x N", "seed", "bound", "zero-bubble", "1f1b", "greedy", "ours",
         "messages ordered", "optimal by", "s")  # fmt: skip

    kinds: tuple[tuple[str, int, Duplex], ...] = (
        ("latency", 0, "full"),
        ("occupancy 12, full", 12, "full"),
        ("occupancy 12, half", 12, "half"),
    )

    for name, occupancy, duplex in kinds:
        for family, stages, n, seed, problem in problems(
            options, occupancy=occupancy, duplex=duplex
        ):
            quick = {c.method: c.makespan for c in portfolio(problem).candidates}
            answer = plan(problem, solver=solver)
            bound = float(answer.bound)
            row(
                name, family, f"{stages} x {n}", seed, f"{bound:g}",
                *(ratio(quick[m], bound) for m in ("zero-bubble", "1f1b", "greedy")),
                ratio(answer.measures.makespan, bound),
                "yes" if answer.schedule.has_messages else "no",
                proof(answer), f"{answer.seconds:.1f}",
            )  # fmt: skip


def quick(options: argparse.Namespace) -> None:
    """Median milliseconds of planning alone, without the proof."""
    head("S x N", "limit", "one pass of the list scheduler", "greedy (all rules)",
         "all quick methods", "plan and prove")  # fmt: skip
    for stages, n in options.sizes:
        for factor in (None, 1):
            memory = None if factor is None else factor * stages
            problem = make(n, instance("uneven", stages, 0, memory), place(stages, 1, "loop"))
            cells = [f"{stages} x {n}", "none" if factor is None else "S"]
            for work in (
                lambda p: greedy(p, Rules()),
                best_greedy,
                portfolio,
                lambda p: plan(p, "heuristic"),
            ):
                laps_ms = []
                for _ in range(options.laps):
                    began = time.perf_counter()
                    work(problem)
                    laps_ms.append(1e3 * (time.perf_counter() - began))
                cells.append(f"{statistics.median(laps_ms):.1f} ms")
            row(*cells)


PARTS = {"free": free, "capped": capped, "links": links, "quick": quick}


def size(text: str) -> tuple[int, int]:
    stages, _, n = text.partition("x")
    return int(stages), int(n)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.pipeline_planner", description=__doc__)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--sizes", type=size, nargs="+", default=list(SIZES), metavar="SxN")
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=list(FAMILIES))
    parser.add_argument("--limits", type=float, nargs="+", default=[1.0, 2.0], metavar="X")
    parser.add_argument("--seeds", type=int, default=1, help="situations of each kind")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--time-limit", type=float, default=60.0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--laps", type=int, default=10)
    parser.add_argument("--peer", type=Path, help="a checkout of wutianyuan1/PipeMorph")
    parser.add_argument("--ilp", action="store_true", help="with --peer: also its ILP, 30 s each")
    options = parser.parse_args()

    PARTS[options.part](options)


if __name__ == "__main__":
    main()
