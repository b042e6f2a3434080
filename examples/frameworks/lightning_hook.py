"""Lightning's DDP with a communication hook of torch's, whose all-reduces run on the backend.

LATECOMER_MODE=auto torchrun --standalone --nproc-per-node 4 examples/frameworks/lightning_hook.py

Lightning itself registers ``DDPStrategy(ddp_comm_hook=...)`` on CUDA only, and on CPU says nothing.
"""

import lightning
import torch
from lightning.pytorch.strategies import DDPStrategy
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

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
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05)


class Hook(lightning.Callback):
    def on_train_start(self, trainer, _):
        trainer.strategy.model.register_comm_hook(None, fp16_compress_hook)


lightning.seed_everything(0)
model = Model()
data = torch.utils.data.DataLoader(torch.randn(256, 10), batch_size=8)
strategy = DDPStrategy(process_group_backend="latecomer")
callbacks = [Hook()]
trainer = lightning.Trainer(
    accelerator="cpu",
    devices=4,
    strategy=strategy,
    callbacks=callbacks,
    max_epochs=2,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(model, data)
if trainer.is_global_zero:
    print(f"all-reduces: {dict(torch.distributed.group.WORLD.paths)}")
