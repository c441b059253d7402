"""Lightning's Trainer and Fabric train on the device, alone and with others, as on the CPU."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lightning
import pytest
import torch
from lightning.fabric import Fabric
from torch import nn

if TYPE_CHECKING:
    from tests.clients.conftest import Launch
    from tests.conftest import RunScript

STEPS, BATCH = 6, 8


class Module(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.network = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4))
        self.losses: list[float] = []

    def training_step(self, batch: Any, _index: int) -> torch.Tensor:
        inputs, targets = batch
        loss = nn.functional.cross_entropy(self.network(inputs), targets)
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def batches() -> torch.utils.data.DataLoader[Any]:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(STEPS * BATCH, 16, generator=generator)
    targets = torch.randint(4, (STEPS * BATCH,), generator=generator)
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(inputs, targets), batch_size=BATCH)


def train(folder: Path, **settings: Any) -> tuple[Module, lightning.Trainer]:
    trainer = lightning.Trainer(
        max_epochs=1,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
        **settings,
    )
    module = Module()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # few workers, few steps
        trainer.fit(module, batches())
    return module, trainer


@pytest.mark.parametrize("named", [False, True])
def test_losses_are_those_of_the_cpu(named: bool, tmp_path: Path, device: torch.device) -> None:
    module, trainer = train(tmp_path, accelerator=device.type if named else "auto")
    assert trainer.strategy.root_device == device
    assert module.losses == pytest.approx(train(tmp_path, accelerator="cpu")[0].losses, rel=1e-4)


@pytest.mark.parametrize("precision", ["bf16-mixed", "16-mixed"])
def test_mixed_precision_trains_as_well(precision: Any, tmp_path: Path, device: torch.device) -> None:
    module, trainer = train(tmp_path, precision=precision)
    plugin: Any = trainer.precision_plugin
    assert plugin.device == device.type
    assert (plugin.scaler is not None and plugin.scaler.is_enabled()) == (precision == "16-mixed")
    assert module.losses == pytest.approx(train(tmp_path, accelerator="cpu")[0].losses, rel=0.02)


def test_training_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    _, trainer = train(tmp_path)
    trainer.save_checkpoint(tmp_path / "checkpoint")
    again = lightning.Trainer(
        max_epochs=2, logger=False, enable_progress_bar=False, enable_model_summary=False, default_root_dir=tmp_path
    )
    module = Module()
    again.fit(module, batches(), ckpt_path=tmp_path / "checkpoint", weights_only=False)
    assert (again.global_step, len(module.losses)) == (2 * STEPS, STEPS)


def test_fabric_trains(device: torch.device) -> None:
    fabric = Fabric(precision="bf16-mixed")
    assert fabric.device == device
    module = Module()
    network, optimizer = fabric.setup(module.network, torch.optim.SGD(module.network.parameters(), lr=0.1))
    for inputs, targets in fabric.setup_dataloaders(batches()):
        loss = nn.functional.cross_entropy(network(inputs), targets)
        fabric.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    assert loss.device == device
    assert loss.isfinite()


def test_devices_that_there_are_not_are_an_error(device: torch.device) -> None:
    with pytest.raises(ValueError, match="set TORCH_MTIA_DEVICES to have more"):
        lightning.Trainer(accelerator=device.type, devices=2, logger=False)


@pytest.mark.parametrize("devices", ["", -2, 1.0, {}])
def test_devices_that_are_no_devices_are_an_error(devices: Any) -> None:
    from torch_mtia.lightning import parse_devices

    with pytest.raises(ValueError, match="devices must be a number of them"):
        parse_devices(devices)


def test_statistics_of_the_device_are_metrics(tmp_path: Path) -> None:
    _, trainer = train(tmp_path)
    stats = trainer.accelerator.get_device_stats(trainer.strategy.root_device)
    assert stats["allocated_bytes.all.peak"] > 0
    assert all(isinstance(value, int) for value in stats.values())


def test_several_processes_train_together(launch: Launch, tmp_path: Path, device: torch.device) -> None:
    script = f"""
        import json, os
        from pathlib import Path
        import torch
        from tests.clients.test_lightning import train
        module, trainer = train(Path({str(tmp_path)!r}), devices=2, accelerator=os.environ["ACCELERATOR"])
        losses = trainer.strategy.reduce(torch.tensor(module.losses, device=module.device), reduce_op="mean")
        strategy = trainer.strategy
        print(json.dumps([str(strategy.root_device), strategy.process_group_backend, losses.tolist()]))
        torch.distributed.destroy_process_group()
    """
    here = str(Path.cwd())
    root, backend, losses = json.loads(launch(script, PYTHONPATH=here, ACCELERATOR="auto").splitlines()[-1])
    assert (root, backend) == (str(device), "tmccl")
    _, _, expected = json.loads(launch(script, PYTHONPATH=here, ACCELERATOR="cpu").splitlines()[-1])
    assert losses == pytest.approx(expected, rel=1e-4)


def test_the_device_has_another_name(run_script: RunScript) -> None:
    script = """
        import pytorch_lightning
        trainer = pytorch_lightning.Trainer(logger=False, enable_checkpointing=False)
        print(trainer.strategy.root_device)
    """
    assert run_script(script, TORCH_MTIA_PRIVATEUSE1="acme").output().splitlines()[-1] == "acme:0"
