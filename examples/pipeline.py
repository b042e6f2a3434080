"""The smallest pipeline: four stages by a schedule file, which adapts when a link turns slow.

synth pipeline --stages 4 --microbatches 8 -o pipeline.json
torchrun --standalone --nproc-per-node 4 examples/pipeline.py
"""

import torch
import torch.distributed as dist
from torch import nn

from latecomer.runtime.pipeline import Adaptation, Pipeline  # line 1

dist.init_process_group("gloo")
rank = dist.get_rank()
last = dist.get_world_size() - 1
torch.manual_seed(rank)
stage = nn.Sequential(nn.Linear(16, 16), nn.Tanh())
loss_fn = nn.functional.mse_loss
pipeline = Pipeline(stage, "pipeline.json", loss_fn, adaptation=Adaptation())  # line 2
optimizer = torch.optim.SGD(stage.parameters(), lr=0.5)

torch.manual_seed(7)  # the same data everywhere: only the first and the last stage look at it
for _ in range(100):
    inputs = torch.randn(64, 16)
    target = inputs.flip(1).tanh() / 2
    losses = []
    optimizer.zero_grad()
    if rank == 0:
        pipeline.step(inputs)
    elif rank == last:
        pipeline.step(target=target, losses=losses)
    else:
        pipeline.step()
    optimizer.step()

if rank == last:
    print(f"loss {sum(losses).item() / len(losses):.3f} after {pipeline.steps} steps")
pipeline.close()
dist.destroy_process_group()
