"""accelerate chooses the device, in one process and in several, and trains on it as on the CPU.

Losses are float32, of sums in another order: 1e-4 of them is allowed, in mixed precision what a rounding of it makes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from accelerate import Accelerator, infer_auto_device_map
from accelerate.state import AcceleratorState
from torch import nn

if TYPE_CHECKING:
    from tests.clients.conftest import Launch
    from tests.conftest import RunScript

STEPS, BATCH = 6, 8


@pytest.fixture(autouse=True)
def new_state() -> Iterator[None]:
    """accelerate keeps one state in a process."""
    AcceleratorState._reset_state(reset_partial_state=True)
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


def model(dropout: float = 0.0) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Dropout(dropout), nn.LayerNorm(32), nn.Linear(32, 4))


def batches() -> torch.utils.data.DataLoader[Any]:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(STEPS * BATCH, 16, generator=generator)
    targets = torch.randint(4, (STEPS * BATCH,), generator=generator)
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(inputs, targets), batch_size=BATCH)


def train(accelerator: Accelerator) -> list[float]:
    network = model()
    optimizer = torch.optim.AdamW(network.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    network, optimizer, loader, scheduler = accelerator.prepare(network, optimizer, batches(), scheduler)
    assert next(network.parameters()).device.type == accelerator.device.type
    losses = []
    for inputs, targets in loader:
        assert inputs.device.type == accelerator.device.type
        with accelerator.accumulate(network):
            with accelerator.autocast():
                loss = nn.functional.cross_entropy(network(inputs).float(), targets)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(network.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def test_the_device_is_chosen(device: torch.device) -> None:
    assert Accelerator().device.type == device.type


def test_the_cpu_is_kept_for_those_who_ask_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Accelerator(cpu=True).device.type == "cpu"
    AcceleratorState._reset_state(reset_partial_state=True)
    monkeypatch.setenv("ACCELERATE_USE_CPU", "1")
    assert Accelerator().device.type == "cpu"


def test_nothing_changes_where_the_device_is_not_loaded(run_script: RunScript) -> None:
    script = """
        import safetensors
        from accelerate import Accelerator
        print(Accelerator().device, safetensors.safe_open.__module__)
    """
    assert run_script(script, TORCH_DEVICE_BACKEND_AUTOLOAD="0").output() == "cpu builtins\n"


def test_the_device_has_another_name(run_script: RunScript) -> None:
    script = """
        import torch
        from accelerate import Accelerator
        accelerator = Accelerator(mixed_precision="fp16")
        print(accelerator.prepare(torch.nn.Linear(2, 2)).weight.device, accelerator.scaler.is_enabled())
    """
    assert run_script(script, TORCH_MTIA_PRIVATEUSE1="acme").output() == "acme:0 True\n"


@pytest.mark.parametrize("accumulation", [1, 2])
def test_losses_are_those_of_the_cpu(accumulation: int) -> None:
    losses = train(Accelerator(gradient_accumulation_steps=accumulation))
    AcceleratorState._reset_state(reset_partial_state=True)
    expected = train(Accelerator(gradient_accumulation_steps=accumulation, cpu=True))
    assert losses == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_mixed_precision_trains_as_well(precision: str) -> None:
    accelerator = Accelerator(mixed_precision=precision)
    assert (accelerator.scaler is not None and accelerator.scaler.is_enabled()) == (precision == "fp16")
    losses = train(accelerator)
    AcceleratorState._reset_state(reset_partial_state=True)
    assert losses == pytest.approx(train(Accelerator(cpu=True)), rel=0.02)


def test_training_goes_on_from_a_checkpoint_with_the_same_random_numbers(tmp_path: Path) -> None:
    accelerator = Accelerator()
    network = model(dropout=0.5)
    network, optimizer = accelerator.prepare(network, torch.optim.AdamW(network.parameters()))
    inputs = torch.randn(BATCH, 16, device=accelerator.device)

    def step() -> float:
        loss = network(inputs).square().mean()
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    step()
    accelerator.save_state(str(tmp_path))
    losses = [step(), step()]
    accelerator.load_state(str(tmp_path))
    assert [step(), step()] == losses


def test_a_model_is_divided_among_the_devices(run_script: RunScript) -> None:
    script = """
        import torch
        from accelerate import dispatch_model, infer_auto_device_map
        model = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(4)))
        expected = model(torch.ones(1, 256))
        devices = infer_auto_device_map(model, max_memory={0: "700KB", 1: "2MB"})
        divided = dispatch_model(model, devices)
        assert torch.allclose(divided(torch.ones(1, 256)).cpu(), expected, atol=1e-6)
        print(*dict.fromkeys(parameter.device.index for parameter in divided.parameters()))
    """
    assert run_script(script, TORCH_MTIA_DEVICES="2").output() == "0 1\n"


def test_a_model_is_on_the_device_with_automatic_placement() -> None:
    assert infer_auto_device_map(model()) == {"": 0}


PREPARED = """
    import json, sys, torch
    from accelerate import Accelerator
    from tests.clients.test_accelerate import batches, model
    from torch import nn
"""
SEVERAL = f"""
    {PREPARED}
    accelerator = Accelerator()
    network = model()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    network, optimizer, loader = accelerator.prepare(network, optimizer, batches())
    devices = accelerator.gather(torch.tensor([accelerator.device.index], device=accelerator.device))
    losses = []
    for inputs, targets in loader:
        loss = nn.functional.cross_entropy(network(inputs), targets)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(accelerator.reduce(loss.detach(), "mean").item())
    accelerator.wait_for_everyone()
    print(json.dumps([accelerator.device.type, devices.tolist(), type(network).__name__, losses]))
    accelerator.end_training()
"""


def test_several_processes_train_together(launch: Launch, device: torch.device) -> None:
    kind, devices, wrapper, losses = json.loads(launch(SEVERAL, PYTHONPATH=str(Path.cwd())))
    assert (kind, devices, wrapper) == (device.type, [0, 1], "DistributedDataParallel")
    assert losses == pytest.approx(expected_of_two_processes(), rel=1e-4)


def test_several_processes_train_on_the_cpu_for_those_who_ask_for_it(launch: Launch) -> None:
    environment = {"ACCELERATE_USE_CPU": "1", "PYTHONPATH": str(Path.cwd())}
    script = textwrap.dedent(SEVERAL).replace("[accelerator.device.index]", "[0]")
    kind, _, _, losses = json.loads(launch(script, **environment))
    assert kind == "cpu"
    assert losses == pytest.approx(expected_of_two_processes(), rel=1e-4)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], ["mtia:0 2", "mtia:1 2"]),
        (["--multi_gpu"], ["mtia:0 2", "mtia:1 2"]),
        (["--num_processes=1"], ["mtia 1"]),
        (["--cpu"], ["cpu 1"]),
    ],
    ids=str,
)
def test_a_process_is_launched_for_each_device(options: list[str], expected: list[str], tmp_path: Path) -> None:
    assert launched(tmp_path, *options) == expected


@pytest.mark.parametrize(("devices", "expected"), [(1, ["mtia 1"]), (2, ["mtia:0 2", "mtia:1 2"])])
def test_the_basic_configuration_is_for_the_device(devices: int, expected: list[str], tmp_path: Path) -> None:
    run_accelerate(tmp_path, "config", "default", devices=devices)
    assert launched(tmp_path, devices=devices) == expected


def test_the_environment_may_ask_for_the_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_USE_CPU", "1")
    assert launched(tmp_path) == ["cpu 1"]


def launched(folder: Path, *options: str, devices: int = 2) -> list[str]:
    """What each process that `accelerate launch` starts prints: its device, and how many processes there are."""
    (folder / "script.py").write_text(
        "from accelerate import Accelerator; a = Accelerator(); print(f'{a.device} {a.num_processes};')"
    )
    said = run_accelerate(folder, "launch", *options, "script.py", devices=devices)
    return sorted(line.strip() for line in said.replace("\n", "").split(";") if line)


def run_accelerate(folder: Path, *arguments: str, devices: int) -> str:
    environment = {"HF_HOME": str(folder), "TORCH_MTIA_DEVICES": str(devices), "PYTHONPATH": str(Path.cwd())}
    process = subprocess.run(
        [sys.executable, "-m", "accelerate.commands.accelerate_cli", *arguments],
        cwd=folder,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert process.returncode == 0, process.stderr
    return process.stdout


def expected_of_two_processes() -> list[float]:
    """Each step has a batch of each process."""
    network = model()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    losses = []
    loader = list(batches())
    for first, second in zip(loader[::2], loader[1::2], strict=True):
        parts = [nn.functional.cross_entropy(network(inputs), targets) for inputs, targets in (first, second)]
        loss = torch.stack(parts).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def test_models_are_sharded(launch: Launch) -> None:
    script = f"""
        {textwrap.indent(textwrap.dedent(PREPARED), " " * 8)}
        from accelerate import FullyShardedDataParallelPlugin
        plugin = FullyShardedDataParallelPlugin(fsdp_version=2, auto_wrap_policy="no_wrap")
        accelerator = Accelerator(fsdp_plugin=plugin)
        network = model()
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
        network, optimizer, loader = accelerator.prepare(network, optimizer, batches())
        losses = []
        for inputs, targets in loader:
            loss = nn.functional.cross_entropy(network(inputs), targets)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(accelerator.reduce(loss.detach(), "mean").item())
        print(json.dumps([type(next(network.parameters())).__name__, losses]))
        accelerator.end_training()
    """
    kind, losses = json.loads(launch(textwrap.dedent(script), PYTHONPATH=str(Path.cwd())))
    assert kind == "DTensor"
    assert losses == pytest.approx(expected_of_two_processes(), rel=1e-4)
