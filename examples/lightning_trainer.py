"""Lightning's Trainer: a callback gives its DDP module the hook. (Its own `ddp_comm_hook` is for CUDA alone.)

pip install '.[lightning]'   # in the clone
inagg testbed --workers 2 -- python examples/lightning_trainer.py
"""

from typing import Any

import lightning
import torch
from blobs import STEPS, make_dataset, make_model, rank_and_world, report
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor, nn

from inagg_host.torch import InaggState, inagg_hook


class Blobs(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.network, self.losses = make_model(), list[float]()

    def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        loss = nn.functional.cross_entropy(self.network(batch[0]), batch[1])
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.05)


class SumInTheNetwork(lightning.Callback):
    def __init__(self) -> None:
        self.state = InaggState()  # before there is a process group: the first bucket joins

    def on_train_start(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        ddp: Any = trainer.strategy.model
        ddp.register_comm_hook(self.state, inagg_hook)


rank, workers = rank_and_world()
module, hook = Blobs(), SumInTheNetwork()
trainer = lightning.Trainer(
    accelerator="cpu", devices=workers, strategy=DDPStrategy(process_group_backend="gloo"), max_epochs=1,
    callbacks=[hook], use_distributed_sampler=False, logger=False, enable_checkpointing=False,
    enable_progress_bar=False, enable_model_summary=False,
)  # fmt: skip
trainer.fit(module, torch.utils.data.DataLoader(make_dataset(rank, 64 * STEPS), 64))
report(rank, module.losses, hook.state.counters)
hook.state.close()
