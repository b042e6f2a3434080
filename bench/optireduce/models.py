"""Two small models and their data, made here: handwritten digits, and synthetic images.

digits   scikit-learn's 1,797 images of 8 x 8, 360 of them for testing; a perceptron of about
         300,000 parameters
images   2,000 images of 3 x 16 x 16, and 20,000 for testing: four patterns per class, shifted at
         random, under noise; a perceptron of 1.05 million parameters

A seed draws a model's start. The data is always the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

NOISE = 1.6
PATTERNS = 4
SIDE = 16
TRAINED = 2_000
TESTED = 20_000


@dataclass(frozen=True)
class Task:
    """A model that is to learn something.

    Attributes:
        model: makes one that is not trained, of a seed; the same on all ranks.
        train, test: (inputs, classes).
        rate: learning rate at the start, with momentum 0.9.
        steps: after so many its accuracy rises no more, with batches of 4 x 32.
    """

    model: Callable[[int], Any]
    train: tuple[Any, Any]
    test: tuple[Any, Any]
    rate: float
    steps: int


def digits() -> Task:
    """Handwritten digits."""
    import torch
    from sklearn.datasets import load_digits

    data = load_digits()
    inputs = torch.tensor(data.images / 16, dtype=torch.float32).flatten(1)
    classes = torch.tensor(data.target)
    order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(1))
    train = order[:1437]
    test = order[1437:]
    return Task(
        partial(_perceptron, [64, 512, 512, 10]),
        (inputs[train], classes[train]),
        (inputs[test], classes[test]),
        rate=0.05,
        steps=150,
    )


def images() -> Task:
    """Synthetic images."""
    import torch

    dice = torch.Generator().manual_seed(2)
    count = TRAINED + TESTED
    patterns = torch.randn(10 * PATTERNS, 3, SIDE, SIDE, generator=dice)
    which = torch.randint(0, 10 * PATTERNS, (count,), generator=dice)
    shifts = torch.randint(0, 2, (count, 2), generator=dice)
    inputs = NOISE * torch.randn(count, 3, SIDE, SIDE, generator=dice)
    for down in (0, 1):
        for right in (0, 1):
            chosen = (shifts == torch.tensor([down, right])).all(1)
            inputs[chosen] += patterns[which[chosen]].roll((down, right), (2, 3))
    inputs = inputs.flatten(1)
    classes = which % 10
    return Task(
        partial(_perceptron, [3 * SIDE * SIDE, 1024, 256, 10]),
        (inputs[:TRAINED], classes[:TRAINED]),
        (inputs[TRAINED:], classes[TRAINED:]),
        rate=0.03,
        steps=100,
    )


TASKS = {"digits": digits, "images": images}


def _perceptron(widths: list[int], seed: int) -> Any:
    import torch
    from torch import nn

    torch.manual_seed(seed)
    layers: list[Any] = []
    for width, following in pairwise(widths):
        layers += [nn.Linear(width, following), nn.ReLU()]
    return nn.Sequential(*layers[:-1])
