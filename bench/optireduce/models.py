"""Two small models and their data, made here: handwritten digits, and synthetic images.

digits   scikit-learn's 1,797 images of 8 x 8; a perceptron of about 300,000 parameters
images   10,000 images of 3 x 16 x 16: four patterns per class, shifted at random, under noise; a
         perceptron of 1.3 million parameters
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

NOISE = 2.0
PATTERNS = 4
SIDE = 16


@dataclass
class Task:
    """A model that is to learn something.

    Attributes:
        model: not trained; the same on all ranks.
        train, test: (inputs, classes).
        rate: learning rate, with momentum 0.9.
    """

    model: Any
    train: tuple[Any, Any]
    test: tuple[Any, Any]
    rate: float


def digits() -> Task:
    """Handwritten digits."""
    import torch
    from sklearn.datasets import load_digits

    data = load_digits()
    inputs = torch.tensor(data.images / 16, dtype=torch.float32).flatten(1)
    return _task(inputs, torch.tensor(data.target), 1437, [512, 512], 0.05)


def images() -> Task:
    """Synthetic images."""
    import torch

    dice = torch.Generator().manual_seed(2)
    patterns = torch.randn(10 * PATTERNS, 3, SIDE, SIDE, generator=dice)
    which = torch.randint(0, 10 * PATTERNS, (10_000,), generator=dice)
    shifts = torch.randint(0, 2, (10_000, 2), generator=dice)
    shown = torch.empty(10_000, 3, SIDE, SIDE)
    for down in (0, 1):
        for right in (0, 1):
            chosen = (shifts == torch.tensor([down, right])).all(1)
            shown[chosen] = patterns[which[chosen]].roll((down, right), (2, 3))
    inputs = (shown + NOISE * torch.randn(shown.shape, generator=dice)).flatten(1)
    return _task(inputs, which % 10, 8000, [1024, 512], 0.03)


TASKS = {"digits": digits, "images": images}


def _task(inputs: Any, classes: Any, trained: int, hidden: list[int], rate: float) -> Task:
    import torch
    from torch import nn

    torch.manual_seed(0)
    widths = [inputs.shape[1], *hidden]
    layers: list[Any] = []
    for width, following in zip(widths, [*hidden, 10], strict=True):
        layers += [nn.Linear(width, following), nn.ReLU()]
    order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(1))
    train, test = order[:trained], order[trained:]
    return Task(
        nn.Sequential(*layers[:-1]),
        (inputs[train], classes[train]),
        (inputs[test], classes[test]),
        rate,
    )
