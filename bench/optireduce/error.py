"""What a loss does to a gradient: TAR against ring and parameter server, with and without HT.

    python -m bench.optireduce.error

A simulation, no network: n ranks hold gradients, datagrams of 356 elements are lost at random, each
algorithm does what it does with what arrives, and the mean over all ranks of the squared error of
its result against the true mean is compared (relative to the gradients' own variance). A received
piece counts as what it is: a ring adds nothing for a lost partial sum and goes on; a parameter
server leaves out what did not come and a rank keeps its own gradient where the broadcast is lost;
TAR divides by what arrived and fills with the own gradient. ``latecomer.runtime.optireduce``'s own
code does TAR's mean and the transform.

Before it, a toy: of eight values in a datagram each the last is lost and taken for zero. The
transform helps where the values are alike (all of them end up in its first coefficient), which
gradients are not; random signs take even that away, and make every loss look the same.

With "scaled" rows, ring and parameter server also divide by the number of contributions that are
really in the sum, which their wire formats do not tell: it is the best they could do.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial

import numpy as np
import torch

from latecomer.runtime.optireduce import hadamard
from latecomer.runtime.optireduce.udp.bucket import shard_bounds
from latecomer.runtime.optireduce.udp.data_path import NUMPY

EACH = 356
"""float32 elements in a datagram of 1472 bytes."""


class Loss:
    """Draws which datagrams arrive: each with equal chance, or in bursts."""

    def __init__(self, share: float, burst: int, seed: int) -> None:
        self.share = share
        self.burst = burst
        self.dice = torch.Generator().manual_seed(seed)

    def arrived(self, numel: int) -> torch.Tensor:
        """Per element of a message: whether its datagram arrived."""
        count = -(-numel // EACH)
        runs = torch.rand(-(-count // self.burst), generator=self.dice) >= self.share
        return runs.repeat_interleave(self.burst)[:count].repeat_interleave(EACH)[:numel]


def tar(gradients: torch.Tensor, loss: Loss) -> torch.Tensor:
    """Every rank's result, [n, numel], by the runtime's own mean."""
    n = len(gradients)
    results = gradients.clone()
    for owner in range(n):
        low, high = shard_bounds(gradients.shape[1], n)[owner : owner + 2]
        count = -(-(high - low) // EACH)

        pieces = []
        arrived = []
        for sender in sorted(set(range(n)) - {owner}):
            arrived.append(loss.arrived(high - low)[::EACH].numpy())
            padded = torch.zeros(count * EACH)
            padded[: high - low] = gradients[sender, low:high]
            pieces.append(padded.view(torch.uint8).numpy().reshape(count, EACH * 4))

        mean = gradients[owner, low:high].clone()
        own = mean.view(torch.uint8).numpy()
        NUMPY.average(own, mean.dtype, owner, np.stack(pieces), 0, np.stack(arrived), True)

        for rank in range(n):
            arrived_mean = loss.arrived(high - low)  # drawn for the owner, too, which has it
            if rank == owner:
                results[rank, low:high] = mean
            else:
                kept_gradient = gradients[rank, low:high]
                results[rank, low:high] = torch.where(arrived_mean, mean, kept_gradient)
    return results


def server(gradients: torch.Tensor, loss: Loss, scaled: bool) -> torch.Tensor:
    """Rank 0 is the parameter server; a message is the whole gradient."""
    n, numel = gradients.shape
    total = gradients[0].clone()
    count = torch.ones(numel)
    for sender in range(1, n):
        mask = loss.arrived(numel)
        total += gradients[sender] * mask
        count += mask
    mean = total / (count if scaled else n)
    results = mean.repeat(n, 1)
    for rank in range(1, n):
        results[rank] = torch.where(loss.arrived(numel), mean, gradients[rank])
    return results


def ring(gradients: torch.Tensor, loss: Loss, scaled: bool) -> torch.Tensor:
    """Ring: a lost partial sum takes all contributions in it away; later sums build on the rest."""
    n, numel = gradients.shape
    bounds = [numel * i // n for i in range(n + 1)]
    state = gradients.clone()
    count = torch.ones(n, numel)

    for step in range(n - 1):  # reduce-scatter
        for rank in range(n):
            chunk = (rank - step) % n
            part = slice(bounds[chunk], bounds[chunk + 1])
            receiver = (rank + 1) % n
            mask = loss.arrived(bounds[chunk + 1] - bounds[chunk])
            state[receiver, part] = gradients[receiver, part] + state[rank, part] * mask
            count[receiver, part] = 1 + count[rank, part] * mask
    state /= count if scaled else n

    results = gradients.clone()
    for chunk in range(n):  # all-gather
        part = slice(bounds[chunk], bounds[chunk + 1])
        owner = (chunk - 1) % n
        results[owner, part] = state[owner, part]
        for step in range(n - 1):
            rank = (owner + step) % n
            receiver = (owner + step + 1) % n
            mask = loss.arrived(bounds[chunk + 1] - bounds[chunk])
            results[receiver, part] = torch.where(
                mask, results[rank, part], results[receiver, part]
            )
    return results


def transformed(gradients: torch.Tensor, seed: int, inverse: bool = False) -> torch.Tensor:
    """Every row through the runtime's transform."""
    rows = gradients.clone()
    for row in rows:
        hadamard.transform(row, seed, inverse=inverse)
    return rows


def gradients_of(n: int, numel: int, seed: int) -> torch.Tensor:
    """Gradients with a common part and large layers beside small ones, as in training."""
    dice = torch.Generator().manual_seed(seed)
    common = torch.randn(numel, generator=dice)
    noise = torch.randn(n, numel, generator=dice)
    sizes = torch.exp(2 * torch.randn(-(-numel // 4096), generator=dice))
    return (common + noise) * sizes.repeat_interleave(4096)[:numel]


def toy() -> None:
    """Print what the transform does for eight values of which one is lost; mean of 300 draws."""
    dice = torch.Generator().manual_seed(0)

    def one_large() -> torch.Tensor:
        return 4.5 * (torch.arange(8) == 7)

    kinds: dict[str, Callable[[], torch.Tensor]] = {
        "alike: 4.5 and a little noise": lambda: 4.5 + 0.28 * torch.randn(8, generator=dice),
        "mean zero, deviation 4.5": lambda: 4.5 * torch.randn(8, generator=dice),
        "zero but for the lost one": one_large,
    }
    pair = torch.tensor([[1.0, 1.0], [1.0, -1.0]])
    matrix = torch.kron(torch.kron(pair, pair), pair) / 8**0.5
    print("| eight values, the last lost | sent as they are | HT, no signs | HT, random signs |")
    print("|:--|--:|--:|--:|")
    draws = 300
    for name, draw in kinds.items():
        error_as_is = 0.0
        error_rotated = 0.0
        error_signed = 0.0
        for seed in range(draws):
            values = draw()
            as_is = values.clone()
            rotated = matrix @ values
            signed = values.clone()
            hadamard.transform(signed, seed, block=8)
            for sent in (as_is, rotated, signed):
                sent[7] = 0.0

            rotated_back = matrix @ rotated
            hadamard.transform(signed, seed, block=8, inverse=True)
            error_as_is += float((as_is - values).square().mean())
            error_rotated += float((rotated_back - values).square().mean())
            error_signed += float((signed - values).square().mean())
        print(
            f"| {name} | {error_as_is / draws:.2f} | {error_rotated / draws:.2f} "
            f"| {error_signed / draws:.2f} |"
        )
    print(flush=True)


Way = Callable[[torch.Tensor, Loss], torch.Tensor]
SHARES = (0.001, 0.01, 0.05, 0.1)
WAYS: dict[str, Way] = {
    "TAR": tar,
    "parameter server": partial(server, scaled=False),
    "parameter server, scaled": partial(server, scaled=True),
    "ring": partial(ring, scaled=False),
    "ring, scaled": partial(ring, scaled=True),
}


def errors_of(way: Way, ht: bool, options: argparse.Namespace) -> tuple[list[float], float]:
    """The relative error by the share that is lost, and that of the worst block of one datagram."""
    errors = []
    worst_block = 0.0
    for share in SHARES:
        of_seeds = []
        for seed in range(options.repeats):
            gradients = gradients_of(options.ranks, options.numel, seed)
            sent = transformed(gradients, seed) if ht else gradients
            results = way(sent, Loss(share, options.burst, seed))
            if ht:
                results = transformed(results, seed, inverse=True)

            squares = (results - gradients.mean(0)).square()
            of_seeds.append(float(squares.mean() / gradients.var()))
            if share == 0.05:
                whole_datagrams = squares[:, : options.numel // EACH * EACH]
                blocks = whole_datagrams.reshape(-1, EACH).mean(1)
                worst_block = max(worst_block, float(blocks.max() / gradients.var()))
        errors.append(sum(of_seeds) / len(of_seeds))
    return errors, worst_block


def main() -> None:
    """Print two Markdown tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--numel", type=int, default=2**18)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--burst", type=int, default=8, help="datagrams lost together")
    options = parser.parse_args()

    toy()
    print(f"{options.ranks} ranks, {options.numel} elements, bursts of {options.burst} datagrams\n")
    print("| way | " + " | ".join(f"{share:.1%}" for share in SHARES) + " | worst block, 5% |")
    print("|:--|" + "--:|" * (len(SHARES) + 1))

    of_tar: list[float] = []  # the first row, to which the others are compared
    for ht in (False, True):
        for name, way in WAYS.items():
            if ht and "scaled" in name:
                continue
            errors, worst_block = errors_of(way, ht, options)
            of_tar = of_tar or errors
            cells = [
                f"{error:.2e} ({error / baseline:.2f})"
                for error, baseline in zip(errors, of_tar, strict=True)
            ]
            suffix = ", HT" if ht else ""
            print(f"| {name}{suffix} | {' | '.join(cells)} | {worst_block:.2f} |", flush=True)


if __name__ == "__main__":
    main()
