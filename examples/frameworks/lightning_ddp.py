"""Lightning's DDP on the backend, with synchronized logs of floats and of integers.

LATECOMER_MODE=auto torchrun --standalone --nproc-per-node 4 examples/frameworks/lightning_ddp.py
"""

import lightning
import torch
from lightning.pytorch.strategies import DDPStrategy

import latecomer.runtime  # noqa: F401  (registers the backend)


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(
            torch.nn.Linear(10, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1)
        )

    def training_step(self, batch, _):
        loss = (self.net(batch) - batch.sum(1, keepdim=True)).square().mean()
        self.log("loss", loss, sync_dist=True)
        self.log("samples", torch.tensor(len(batch)), sync_dist=True, reduce_fx="sum")
        self.log("largest", batch.max(), sync_dist=True, reduce_fx="max")
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05)


lightning.seed_everything(0)
model = Model()
data = torch.utils.data.DataLoader(torch.randn(256, 10), batch_size=8)
strategy = DDPStrategy(process_group_backend="latecomer")
trainer = lightning.Trainer(
    accelerator="cpu",
    devices=4,
    strategy=strategy,
    max_epochs=2,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(model, data)
if trainer.is_global_zero:
    group = torch.distributed.group.WORLD
    print({name: value.item() for name, value in trainer.callback_metrics.items()})
    print(f"all-reduces: {dict(group.paths)}")
