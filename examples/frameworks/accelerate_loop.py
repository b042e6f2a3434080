"""A training loop with accelerate on the backend.

LATECOMER_MODE=auto torchrun --standalone --nproc-per-node 4 examples/frameworks/accelerate_loop.py
"""

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.utils import set_seed

import latecomer.runtime  # noqa: F401  (registers the backend)

# Before Accelerator, which would make a group on Gloo, and takes the one that is there.
dist.init_process_group("latecomer")
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)

set_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(10, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
data = torch.utils.data.DataLoader(torch.randn(256, 10), batch_size=8)
model, optimizer, data = accelerator.prepare(model, optimizer, data)

for batch in data:
    with accelerator.accumulate(model):
        loss = (model(batch) - batch.sum(1, keepdim=True)).square().mean()
        accelerator.backward(loss)
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

mean = accelerator.reduce(loss.detach(), "mean")
largest = accelerator.gather(loss.detach()).max()
accelerator.wait_for_everyone()
accelerator.print(f"loss {mean:.3f}, at most {largest:.3f}")
accelerator.print(f"all-reduces: {dict(dist.group.WORLD.paths)}")
dist.destroy_process_group()
