"""How far sums are off those in float64: the same bits, and plain DDP's.

A transformer with 360,000 parameters guesses hidden words of the standard library's source, most of
which are rare, in eight microbatches a step. In two steps the learning rate is 40 times as large,
from which the loss is slow to recover; later the loss of one microbatch is 1,000 times as large.

Weights are kept in float32 (float64), and gradients computed in the format that is measured, as
mixed precision has it. All gradients of a step are summed as one bucket in three ways: with the
same bits; as DDP does, each divided by eight and added in the format; and in float64. Training goes
on with the first of these.
"""

from __future__ import annotations

import argparse
import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import nn

from latecomer.runtime.samebits.repetition import RepetitionAlone
from latecomer.runtime.samebits.summing import Contributions, SameBits, TensorExponents
from latecomer.runtime.work import AllReduceWork, CollectiveWork

CONTRIBUTIONS = 8
EXAMPLES = 8  # of a microbatch
WORDS = 32  # of an example
VOCABULARY = 2000
WIDTH = 64
HIDDEN = 0.2
LEARNING_RATE = 1e-3
SPIKED_STEPS = (120, 121)
SPIKED_RATE = 40 * LEARNING_RATE
WRONG_STEP = 160
WRONG_MICROBATCH = 3
WRONG_FACTOR = 1000.0
LOSS_SCALES = {"float16": 2.0**7}
"""Without one many gradients would be too small for the format."""
WAYS = ("`same`", "as DDP")
DTYPES = ("float32", "bfloat16", "float16", "float64")


class Transformer(nn.Module):
    """Two layers between an embedding and a vocabulary."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(
            WIDTH, nhead=4, dim_feedforward=4 * WIDTH, dropout=0.0, activation="gelu",
            batch_first=True,
        )  # fmt: skip
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.last = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """What each word may be."""
        scores: torch.Tensor = self.last(self.layers(self.embedding(words)))
        return scores


def text() -> tuple[torch.Tensor, torch.Tensor]:
    """Examples from the standard library with some words hidden, and without."""
    files = sorted(Path(re.__file__).parents[1].glob("*.py"))[:80]
    found = re.findall(r"\w+|\S", " ".join(file.read_text() for file in files))
    common = Counter(found).most_common(VOCABULARY - 2)
    numbers = {word: number for number, (word, _) in enumerate(common, start=1)}
    other = VOCABULARY - 1
    whole = torch.tensor([numbers.get(word, other) for word in found]).unfold(0, WORDS, 4)
    is_shown = torch.rand(whole.shape, generator=torch.Generator().manual_seed(0)) > HIDDEN
    return whole * is_shown, whole


class Sums:
    """Sums of all contributions in one process, with the same bits."""

    def __init__(self, sizes: tuple[int, ...], dtype: torch.dtype) -> None:
        self._sizes = sizes
        self._sums = SameBits(CONTRIBUTIONS, torch.device("cpu"), RepetitionAlone(), None)
        self._exponents = [TensorExponents(size, dtype, CONTRIBUTIONS) for size in sizes]

    @property
    def repeated(self) -> int:
        """How many sums were done again."""
        return self._sums.repeated

    def average(self, contributions: list[torch.Tensor]) -> torch.Tensor:
        """Of flat tensors."""
        first, *others = contributions
        by_tensor: dict[int, list[torch.Tensor]] = {
            tensor: [] for tensor in range(len(self._sizes))
        }
        for other in others:
            for tensor, part in enumerate(other.split(list(self._sizes))):
                by_tensor[tensor].append(part)
        given = Contributions(first.clone(), self._sizes, CONTRIBUTIONS, by_tensor)
        work = self._sums.submit(given, self._exponents, _alone, average=True)
        return work.wait()

    def close(self) -> None:
        """Release the thread."""
        self._sums.close()


def _alone(integers: torch.Tensor) -> CollectiveWork:
    """The all-reduce of one rank."""
    work = AllReduceWork(0, integers, average=False)
    work.settle()
    return work


@dataclass
class Row:
    """What was measured in one format, by step; errors by way."""

    errors: dict[str, list[float]] = field(default_factory=lambda: {way: [] for way in WAYS})
    """The L2 norm of the error, over that of the average in float64."""
    largest: dict[str, list[float]] = field(default_factory=lambda: {way: [] for way in WAYS})
    """The largest error of an element, over the largest element."""
    losses: list[float] = field(default_factory=list)
    repeated_in: list[int] = field(default_factory=list)


def measure(name: str, steps: int) -> Row:
    """Train in one format."""
    dtype: torch.dtype = getattr(torch, name)
    scale = LOSS_SCALES.get(name, 1.0)
    hidden, whole = text()
    torch.manual_seed(0)
    weights = Transformer().to(torch.float64 if dtype == torch.float64 else torch.float32)
    model = Transformer().to(dtype)
    optimizer = torch.optim.AdamW(weights.parameters(), LEARNING_RATE)
    sums = Sums(tuple(each.numel() for each in weights.parameters()), dtype)
    dice = torch.Generator().manual_seed(1)
    row = Row()
    for step in range(steps):
        model.load_state_dict(weights.state_dict())
        chosen = torch.randint(len(whole), (CONTRIBUTIONS, EXAMPLES), generator=dice)
        gradients = []
        losses = []
        for number, rows in enumerate(chosen):
            is_wrong = step == WRONG_STEP and number == WRONG_MICROBATCH
            factor = scale * WRONG_FACTOR if is_wrong else scale
            loss, gradient = _gradient(model, hidden[rows], whole[rows], factor)
            losses.append(loss)
            gradients.append(gradient)

        repeated_before = sums.repeated
        same = sums.average(gradients)
        if sums.repeated > repeated_before:
            row.repeated_in.append(step)
        plain = torch.zeros_like(same)
        for gradient in gradients:
            plain += gradient / CONTRIBUTIONS
        exact = _exact(gradients)
        for way, result in zip(WAYS, (same, plain), strict=True):
            off = result.double().numpy().astype(exact.dtype) - exact
            row.errors[way].append(float(np.linalg.norm(off) / np.linalg.norm(exact)))
            row.largest[way].append(float(np.abs(off).max() / np.abs(exact).max()))
        row.losses.append(sum(losses) / CONTRIBUTIONS)

        rate = SPIKED_RATE if step in SPIKED_STEPS else LEARNING_RATE
        optimizer.param_groups[0]["lr"] = rate
        parameters = list(weights.parameters())
        parts = (same / scale).split([each.numel() for each in parameters])
        for parameter, part in zip(parameters, parts, strict=True):
            parameter.grad = part.view_as(parameter).to(parameter.dtype)
        optimizer.step()
    sums.close()
    return row


def _gradient(
    model: nn.Module, hidden: torch.Tensor, whole: torch.Tensor, scale: float
) -> tuple[float, torch.Tensor]:
    """The loss of one microbatch, and its gradient as one row."""
    model.zero_grad()
    scores = model(hidden)
    wide = scores if scores.dtype == torch.float64 else scores.float()
    loss = nn.functional.cross_entropy(wide.movedim(-1, 1), whole)
    (loss * scale).backward()
    gradients = [each.grad.flatten() for each in model.parameters() if each.grad is not None]
    return loss.item(), torch.cat(gradients)


def _exact(gradients: list[torch.Tensor]) -> np.ndarray:
    """The average in float64; where that is what is measured, in what numpy has beyond it."""
    wider = np.longdouble if gradients[0].dtype == torch.float64 else np.float64
    rows = [gradient.double().numpy().astype(wider) for gradient in gradients]
    average: np.ndarray = np.sum(rows, axis=0) / CONTRIBUTIONS
    return average


def run(options: argparse.Namespace) -> None:
    """Measure, and print Markdown tables."""
    torch.set_num_threads(1)
    print("| gradients | bits | median | most | in step | of the largest | done again in steps |")
    print("|:--|:--|--:|--:|--:|--:|:--|", flush=True)
    rows = {}
    for name in options.dtypes:
        rows[name] = row = measure(name, options.steps)
        for way in WAYS:
            errors = row.errors[way]
            again = ", ".join(map(str, row.repeated_in)) if way == WAYS[0] else ""
            print(
                f"| {name} | {way} | {np.median(errors):.1e} | {max(errors):.1e} "
                f"| {int(np.argmax(errors))} | {np.median(row.largest[way]):.1e} | {again} |",
                flush=True,
            )

    if options.steps > WRONG_STEP:
        _print_recovery(rows, options.steps)
    for name, row in rows.items():
        losses = ", ".join(f"{loss:.2f}" for loss in row.losses[:: max(1, options.steps // 20)])
        print(f"{name}: loss {losses}; in the end {row.losses[-1]:.2f}")


def _print_recovery(rows: dict[str, Row], steps: int) -> None:
    print("\nErrors with the same bits after the wrong loss:\n")
    shown = range(WRONG_STEP - 1, min(WRONG_STEP + 12, steps))
    print(f"| step | {' | '.join(map(str, shown))} |")
    print(f"|:--|{'--:|' * len(shown)}")
    for name, row in rows.items():
        errors = row.errors[WAYS[0]]
        print(f"| {name} | {' | '.join(f'{errors[step]:.0e}' for step in shown)} |")
    print()
