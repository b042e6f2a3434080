"""DeepSpeed's ZeRO-1 on the backend, on CPU.

DS_ACCELERATOR=cpu LATECOMER_MODE=auto \
    torchrun --standalone --nproc-per-node 4 examples/frameworks/deepspeed_zero1.py
"""

import deepspeed
import torch
import torch.distributed as dist

import latecomer.runtime  # noqa: F401  (registers the backend)

# Before deepspeed.initialize, which would ask the accelerator for a backend's name.
dist.init_process_group("latecomer")

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(10, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
engine, optimizer, _, _ = deepspeed.initialize(
    model=model,
    optimizer=torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
    config={
        "train_micro_batch_size_per_gpu": 8,
        "gradient_accumulation_steps": 2,
        "gradient_clipping": 1.0,
        "zero_optimization": {"stage": 1},
        "zero_allow_untested_optimizer": True,
    },
)

torch.manual_seed(1 + dist.get_rank())
for _ in range(16):
    inputs = torch.randn(8, 10)
    loss = (engine(inputs) - inputs.sum(1, keepdim=True)).square().mean()
    engine.backward(loss)
    engine.step()

if dist.get_rank() == 0:
    print(f"loss {loss.item():.3f}; all-reduces: {dict(engine.data_parallel_group.paths)}")
dist.destroy_process_group()
