"""A small model in stages, its data, and gradients by a plain loop over the microbatches.

The reference shares nothing with the runtime: it runs the whole model, microbatch after microbatch.
"""

from __future__ import annotations

import torch
from torch import nn

from runtime.pipeline import Pipeline

WIDTH = 6
PER_MICROBATCH = 3


class Block(nn.Module):
    """Attention-free transformer shape: norm, two linear layers, residual."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.tanh(self.up(self.norm(x))))


def model(stages: int, seed: int = 0) -> list[nn.Module]:
    torch.manual_seed(seed)
    return [Block() for _ in range(stages)]


def device_of(blocks: list[nn.Module]) -> torch.device:
    return next(blocks[0].parameters()).device


def batch(
    step: int, microbatches: int, device: torch.device | str = "cpu"
) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(100 + step)
    size = microbatches * PER_MICROBATCH, WIDTH
    x, y = (torch.randn(size, generator=generator) for _ in range(2))
    return x.to(device), y.to(device)


def loss_fn(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return ((output - target) ** 2).mean()


def run_step(
    pipeline: Pipeline, data: int, device: torch.device | str = "cpu"
) -> list[torch.Tensor]:
    """A step of a pipeline with the batch of this number; its losses."""
    plan, mine = pipeline.verified.schedule, pipeline.verified.stages_of(pipeline.rank)
    x, y = batch(data, plan.microbatches, device)
    losses: list[torch.Tensor] = []
    target = y if plan.stages - 1 in mine else None
    pipeline.step(*([x] if 0 in mine else []), target=target, losses=losses)
    return losses


def reference(
    blocks: list[nn.Module], step: int, microbatches: int
) -> tuple[list[list[torch.Tensor]], list[float]]:
    """(gradients per stage, loss per microbatch) of one step."""
    whole = nn.Sequential(*blocks)
    whole.zero_grad()
    x, y = batch(step, microbatches, device_of(blocks))
    losses = []
    for part, target in zip(x.chunk(microbatches), y.chunk(microbatches), strict=True):
        loss = loss_fn(whole(part), target)
        loss.backward()
        losses.append(loss.item())
    gradients = [
        [p.grad / microbatches for p in block.parameters() if p.grad is not None]
        for block in blocks
    ]
    whole.zero_grad()
    return gradients, losses
