"""Hugging Face's Trainer on the backend, with a tiny GPT-2 made from its configuration.

LATECOMER_MODE=auto torchrun --standalone --nproc-per-node 4 examples/frameworks/hf_trainer.py
"""

import torch
import torch.distributed as dist
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

import latecomer.runtime  # noqa: F401  (registers the backend)

# Before TrainingArguments: accelerate would make a group on Gloo, and takes the one that is there.
dist.init_process_group("latecomer")

set_seed(0)
model = GPT2LMHeadModel(
    GPT2Config(vocab_size=64, n_positions=16, n_embd=32, n_layer=2, n_head=2, use_cache=False)
)
tokens = torch.randint(0, 64, (128, 16))
data = [{"input_ids": row, "labels": row} for row in tokens]
trainer = Trainer(
    model=model,
    args=TrainingArguments(
        output_dir="out/hf",
        use_cpu=True,
        per_device_train_batch_size=4,
        max_steps=8,
        max_grad_norm=1.0,
        learning_rate=0.1,
        optim="sgd",
        eval_strategy="steps",
        eval_steps=4,
        logging_steps=4,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    ),
    train_dataset=data,
    eval_dataset=data[:32],
)
trainer.train()
if dist.get_rank() == 0:
    print(f"all-reduces: {dict(dist.group.WORLD.paths)}")
dist.destroy_process_group()
