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
    """A block for each stage, with the same weights wherever they are made."""
    torch.manual_seed(seed)
    return [Block() for _ in range(stages)]


def device_of(blocks):
    return next(blocks[0].parameters()).device


def batch(step, microbatches, device="cpu"):
    """Inputs and targets of a step, the same wherever they are made."""
    generator = torch.Generator().manual_seed(100 + step)
    size = (microbatches * PER_MICROBATCH, WIDTH)
    x = torch.randn(size, generator=generator)
    y = torch.randn(size, generator=generator)
    return x.to(device), y.to(device)


def loss_fn(output, target):
    return ((output - target) ** 2).mean()


def run_step(pipeline, data, device="cpu"):
    """A step of a pipeline with the batch of this number; its losses."""
    plan = pipeline.verified.schedule
    own_stages = pipeline.verified.stages_of(pipeline.rank)
    x, y = batch(data, plan.microbatches, device)
    inputs = [x] if 0 in own_stages else []
    target = y if plan.stages - 1 in own_stages else None
    losses = []
    pipeline.step(*inputs, target=target, losses=losses)
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

    gradients = []
    for block in blocks:
        sums = [parameter.grad for parameter in block.parameters()]
        gradients.append([gradient / microbatches for gradient in sums if gradient is not None])
    whole.zero_grad()
    return gradients, losses
