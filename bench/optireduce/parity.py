"""Would erasure coding pay? One XOR parity datagram for every group of g, simulated.

    python -m bench.optireduce.parity [--seeds 5] [--short]

After OptiNIC and SDR-RDMA: of a group that lost exactly one datagram, parity among them, the
receiver makes up the lost one. Three tables: what stays lost on a link that loses datagrams each
by itself or in bursts, with groups of neighbours or interleaved (so many groups take turns); what
the XOR costs a processor; and what early training gains: four ranks in one process train the
larger model of ``bench.optireduce.models``, their gradients averaged as a transpose AllReduce over
such links does it (a mean over what came; the own contribution where the result is lost), after a
quarter of its steps, and after the steps for which as many bytes are enough with parity.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

EACH = 356
"""float32 elements in a datagram of 1472 bytes."""
BURST = 8
RANKS = 4
BATCH = 32
STEPS = 25


class Link(NamedTuple):
    """Loses so large a share of datagrams, in bursts of so many on average."""

    share: float
    burst: int = 1

    def arrived(self, count: int, dice: np.random.Generator) -> np.ndarray:
        """Whether each of ``count`` datagrams in a row arrived (Gilbert's model)."""
        if not self.share or self.burst == 1:
            return dice.random(count) >= self.share

        between = self.burst * (1 - self.share) / self.share  # datagrams between two bursts
        rounds = int(count / (between + self.burst) * 2) + 20
        runs = np.empty(2 * rounds, np.int64)
        runs[::2] = dice.geometric(1 / between, rounds)
        runs[1::2] = dice.geometric(1 / self.burst, rounds)
        arrived = np.repeat(np.arange(2 * rounds) % 2 == 0, runs)
        first = int(dice.integers(int(between + self.burst)))
        assert len(arrived) >= first + count
        in_a_row: np.ndarray = arrived[first : first + count]
        return in_a_row


class Code(NamedTuple):
    """A parity datagram for every ``group``, ``turns`` groups interleaved; 0: none."""

    group: int = 0
    turns: int = 1

    @property
    def more(self) -> float:
        """Share of bytes that are sent in addition."""
        return 1 / self.group if self.group else 0.0

    def arrived(self, count: int, link: Link, dice: np.random.Generator) -> np.ndarray:
        """Whether each of ``count`` datagrams of data is there after repair."""
        if not self.group:
            return link.arrived(count, dice)

        blocks = -(-count // (self.group * self.turns))
        shape = blocks, self.group + 1, self.turns
        arrived = link.arrived(int(np.prod(shape)), dice).reshape(shape)
        lost_of_group = (~arrived).sum(1, keepdims=True)
        repaired = arrived | (lost_of_group == 1)
        data = repaired[:, : self.group]
        return data.reshape(-1)[:count]


NONE = Code()
CODES = (NONE, Code(32), Code(16), Code(8), Code(4), Code(8, 16))
LINKS = tuple(Link(share, burst) for share in (0.001, 0.01, 0.05, 0.1) for burst in (1, BURST))


def named(code: Code) -> str:
    """For tables."""
    if not code.group:
        return "none"
    if code.turns == 1:
        return f"1 in {code.group}"
    return f"1 in {code.group}, {code.turns} interleaved"


def left() -> None:
    """What stays lost."""
    dice = np.random.default_rng(1)
    print(f"| lost | {' | '.join(map(named, CODES))} |\n|:--|{'--:|' * len(CODES)}")
    print(f"| more bytes | {' | '.join(f'{code.more:.1%}' for code in CODES)} |")
    for link in LINKS:
        shares = [1 - code.arrived(2_000_000, link, dice).mean() for code in CODES]
        how = "one by one" if link.burst == 1 else f"bursts of {link.burst}"
        print(f"| {link.share:.1%}, {how} | {' | '.join(f'{s:.3%}' for s in shares)} |")


def cost() -> None:
    """Processor time of one XOR over all data, as sender and receiver each need it."""
    rows = np.random.default_rng(1).integers(0, 2**63, (4096, EACH // 2), np.int64)
    print("\n| groups of | XOR, s per GB | as fast as a copy |\n|:--|--:|--:|")
    for group in (4, 8, 16, 32):
        grouped = rows.reshape(-1, group, EACH // 2)
        xor_s = _best(partial(np.bitwise_xor.reduce, grouped, axis=1))
        copy_s = _best(rows.copy)
        print(f"| {group} | {xor_s / rows.nbytes * 1e9:.2f} | {copy_s / xor_s:.2f} |")


def _best(call: Callable[[], object]) -> float:
    """The shortest of twenty calls, in seconds."""
    times = []
    for _ in range(20):
        began_s = time.perf_counter()
        call()
        times.append(time.perf_counter() - began_s)
    return min(times)


def average(
    gradients: Any, link: Link, code: Code, dice: np.random.Generator
) -> Iterator[tuple[int, Any]]:
    """Each rank's result of a transpose AllReduce of ``gradients``, [ranks, numel]."""
    import torch

    numel = gradients.shape[1]
    bounds = [numel * rank // RANKS for rank in range(RANKS + 1)]
    shards = [slice(low, high) for low, high in pairwise(bounds)]

    def drawn(elements: int) -> Any:
        """Whether each element of a message arrived."""
        datagrams = code.arrived(-(-elements // EACH), link, dice)
        return torch.from_numpy(np.repeat(datagrams, EACH)[:elements])

    means = []
    for owner, shard in enumerate(shards):
        contributions = gradients[:, shard]
        arrived = torch.stack([drawn(contributions.shape[1]) for _ in range(RANKS)])
        arrived[owner] = True
        means.append((contributions * arrived).sum(0) / arrived.sum(0))

    for rank in range(RANKS):
        result = gradients[rank].clone()
        for owner, shard in enumerate(shards):
            mean = means[owner]
            arrived = drawn(len(mean)) | (owner == rank)
            result[shard] = torch.where(arrived, mean, result[shard])
        yield rank, result


def trained(task: Any, link: Link, code: Code, seed: int) -> dict[int, float]:
    """Accuracy, per cent, after each of ``STEPS`` steps that counts."""
    import torch
    from torch import nn
    from torch.nn.utils import parameters_to_vector, vector_to_parameters

    models = [task.model(seed) for _ in range(RANKS)]
    optimizers = [torch.optim.SGD(m.parameters(), lr=task.rate, momentum=0.9) for m in models]
    generators = [torch.Generator().manual_seed(100 * seed + rank) for rank in range(RANKS)]
    dice = np.random.default_rng(seed)
    inputs, classes = task.train
    test_inputs, test_classes = task.test
    accuracies = {}
    for step in range(1, STEPS + 1):
        gradients = []
        for model, generator in zip(models, generators, strict=True):
            batch = torch.randint(0, len(inputs), (BATCH,), generator=generator)
            model.zero_grad()
            nn.functional.cross_entropy(model(inputs[batch]), classes[batch]).backward()
            gradients.append(parameters_to_vector([p.grad for p in model.parameters()]))

        for rank, result in average(torch.stack(gradients), link, code, dice):
            vector_to_parameters(result, [p.grad for p in models[rank].parameters()])
            optimizers[rank].step()

        if step in (STEPS, same_bytes(code)):
            with torch.no_grad():
                is_right = models[0](test_inputs).argmax(1) == test_classes
            accuracies[step] = 100 * float(is_right.float().mean())
    return accuracies


def same_bytes(code: Code) -> int:
    """Steps that send as many bytes as ``STEPS`` without parity."""
    return round(STEPS / (1 + code.more))


def training(seeds: int, short: bool) -> None:
    """Early accuracy."""
    import torch

    from bench.optireduce.models import images

    torch.set_num_threads(1)
    task = images()
    lossless = list[float]()
    print(
        f"\n| lost | parity | after {STEPS} steps | against no loss | after as many bytes "
        "| against no loss |\n|:--|:--|--:|--:|--:|--:|",
        flush=True,
    )
    cases = [(Link(0.0), NONE), (Link(0.01), NONE), (Link(0.01), Code(8))]
    cases += [(Link(share), code) for share in (0.05, 0.1) for code in (NONE, Code(8))]
    cases += [(Link(0.1, BURST), code) for code in (NONE, Code(8, 16))]
    if short:
        cases = cases[:3]
    for link, code in cases:
        by_seed = [trained(task, link, code, seed) for seed in range(seeds)]
        if not lossless:  # the first case
            lossless = [accuracies[STEPS] for accuracies in by_seed]
        cells = []
        for step in (STEPS, same_bytes(code)):
            at_step = [accuracies[step] for accuracies in by_seed]
            points = [
                accuracy - baseline for accuracy, baseline in zip(at_step, lossless, strict=True)
            ]
            spread = f" ± {statistics.stdev(points):.1f}" if seeds > 1 else ""
            mean = statistics.mean(at_step)
            cells.append(f"{mean:.1f} | {statistics.mean(points):+.1f}{spread}")
        losses = f"{link.share:.0%}"
        if link.burst > 1:
            losses += f", bursts of {link.burst}"
        print(f"| {losses} | {named(code)} | {' | '.join(cells)} |", flush=True)


def main() -> None:
    """All three."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--short", action="store_true", help="three trainings of one seed")
    options = parser.parse_args()

    left()
    cost()
    training(1 if options.short else options.seeds, options.short)


if __name__ == "__main__":
    main()
