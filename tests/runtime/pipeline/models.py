"""A small model in stages, its data, and gradients by a plain loop over the microbatches.

The reference shares nothing with the runtime: it runs the whole model, microbatch after microbatch.
"""

from __future__ import annotations

import torch
from torch import nn

WIDTH = 6
PER_MICROBATCH = 3


class Block(nn.Module):
    """Attention-free transformer shape: norm, two linear layers, residual."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(torch.tanh(self.up(self.norm(x))))


def model(stages, seed=0):
    torch.manual_seed(seed)
    return [Block() for _ in range(stages)]


def device_of(blocks):
    return next(blocks[0].parameters()).device


def batch(step, microbatches, device="cpu"):
    generator = torch.Generator().manual_seed(100 + step)
    size = microbatches * PER_MICROBATCH, WIDTH
    x, y = (torch.randn(size, generator=generator) for _ in range(2))
    return x.to(device), y.to(device)


def loss_fn(output, target):
    return ((output - target) ** 2).mean()


def run_step(pipeline, data, device="cpu"):
    """A step of a pipeline with the batch of this number; its losses."""
    plan = pipeline.verified.schedule
    mine = pipeline.verified.stages_of(pipeline.rank)
    x, y = batch(data, plan.microbatches, device)
    losses = []
    target = y if plan.stages - 1 in mine else None
    pipeline.step(*([x] if 0 in mine else []), target=target, losses=losses)
    return losses


def reference(blocks, step, microbatches):
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
