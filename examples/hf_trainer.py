"""The Hugging Face Trainer: a callback gives its DDP module the hook when training begins.

pip install '.[accelerate]'   # in the clone
inagg testbed --workers 2 -- python examples/hf_trainer.py
"""

import tempfile
from typing import Any

import torch
from blobs import STEPS, make_dataset, make_model, rank_and_world, report
from torch import Tensor, nn
from transformers import Trainer, TrainerCallback, TrainingArguments

from inagg_host.torch import InaggState, inagg_hook


class Blobs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.network, self.losses = make_model(), list[float]()

    def forward(self, points: Tensor, labels: Tensor) -> dict[str, Tensor]:
        loss = nn.functional.cross_entropy(self.network(points), labels)
        self.losses.append(loss.item())
        return {"loss": loss}


class SumInTheNetwork(TrainerCallback):
    def on_train_begin(self, *arguments: Any, **known: Any) -> None:
        trainer.model_wrapped.register_comm_hook(state, inagg_hook)


rank, workers = rank_and_world()
rows = [{"points": points, "labels": label} for points, label in make_dataset(0, 64 * STEPS * workers)]
model = Blobs()
state = InaggState()
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        folder, use_cpu=True, ddp_backend="gloo", per_device_train_batch_size=64, num_train_epochs=1, optim="sgd",
        learning_rate=0.05, lr_scheduler_type="constant", max_grad_norm=0.0, report_to="none", save_strategy="no",
        logging_strategy="no", disable_tqdm=True, ddp_find_unused_parameters=False,
    )  # fmt: skip
    trainer = Trainer(model, arguments, train_dataset=rows, callbacks=[SumInTheNetwork()])
    trainer.train()
    report(rank, model.losses, state.counters)
    state.close()
torch.distributed.destroy_process_group()
