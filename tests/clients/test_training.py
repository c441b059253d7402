"""Libraries for training: adapters, quantized weights, metrics, the search for hyperparameters."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import peft
import pytest
import torch
import torch._inductor.config
import torchmetrics
import torchmetrics.classification
from torch import nn
from torchao.quantization import Int8DynamicActivationInt8WeightConfig, Int8WeightOnlyConfig, quantize_

if TYPE_CHECKING:
    from tests.conftest import RunScript


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4))


def adapted() -> peft.PeftModel:
    model = network()
    torch.manual_seed(1)
    return peft.get_peft_model(model, peft.LoraConfig(target_modules=["0", "2"], r=4))  # type: ignore[arg-type]


def train(model: nn.Module, device: str) -> list[float]:
    model = model.to(device)
    optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], lr=0.01)
    inputs = torch.randn(8, 16, generator=torch.Generator().manual_seed(2)).to(device)
    losses = []
    for _ in range(4):
        loss = model(inputs).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def test_adapters_train_as_on_the_cpu(device: torch.device) -> None:
    assert train(adapted(), device.type) == pytest.approx(train(adapted(), "cpu"), rel=1e-4)


def test_adapters_are_saved_loaded_and_merged(tmp_path: Path, device: torch.device) -> None:
    model = adapted().to(device)
    train(model, device.type)
    model.save_pretrained(str(tmp_path))
    loaded = peft.PeftModel.from_pretrained(network().to(device), str(tmp_path))
    assert {parameter.device for parameter in loaded.parameters()} == {device}
    inputs = torch.randn(2, 16, device=device)
    torch.testing.assert_close(loaded.merge_and_unload()(inputs), model(inputs), rtol=1e-4, atol=1e-5)


def test_peft_chooses_the_device(device: torch.device) -> None:
    assert peft.utils.infer_device() == device.type


@pytest.fixture
def _settings() -> Iterator[None]:
    """torchao turns on what makes compiled code quicker, and compiling it much slower, for the whole process."""
    precision, settings = torch.get_float32_matmul_precision(), torch._inductor.config.get_config_copy()
    yield
    torch._inductor.config.load_config(settings)
    torch.set_float32_matmul_precision(precision)


@pytest.mark.usefixtures("_settings")
@pytest.mark.parametrize("configuration", [Int8WeightOnlyConfig, Int8DynamicActivationInt8WeightConfig])
def test_quantized_weights_compute_as_on_the_cpu(configuration: type, device: torch.device) -> None:
    inputs = torch.randn(8, 16)
    results = []
    for kind in ("cpu", device.type):
        model = network().to(kind).eval()
        quantize_(model, configuration())
        results.append(model(inputs.to(kind)).cpu())
    torch.testing.assert_close(results[1], results[0], rtol=1e-2, atol=1e-2)


METRICS = [
    lambda: torchmetrics.classification.MulticlassAccuracy(4),
    lambda: torchmetrics.classification.MulticlassAUROC(4),
    lambda: torchmetrics.classification.MulticlassF1Score(4),
    lambda: torchmetrics.classification.MulticlassConfusionMatrix(4),
    lambda: torchmetrics.classification.MulticlassCalibrationError(4),
]


@pytest.mark.parametrize("make", METRICS, ids=lambda make: type(make()).__name__)
def test_metrics_are_those_of_the_cpu(make: type, device: torch.device) -> None:
    scores = torch.randn(32, 4).softmax(-1)
    targets = torch.randint(4, (32,))
    results = []
    for kind in ("cpu", device.type):
        metric = make().to(kind)
        for _ in range(2):
            metric.update(scores.to(kind), targets.to(kind))
        assert metric.compute().device.type == kind
        results.append(metric.compute().cpu())
    torch.testing.assert_close(results[1], results[0])


def test_several_processes_search_together(run_script: RunScript, device: torch.device) -> None:
    script = f"""
        import multiprocessing, tempfile
        import optuna
        import torch

        def objective(trial):
            rate = trial.suggest_float("rate", 0.01, 1.0, log=True)
            x = torch.ones(4, device={device.type!r}, requires_grad=True)
            optimizer = torch.optim.SGD([x], lr=rate)
            for _ in range(3):
                optimizer.zero_grad()
                loss = x.square().sum()
                loss.backward()
                optimizer.step()
            return loss.item()

        def search(storage, seed):
            optuna.logging.set_verbosity(optuna.logging.WARNING)
            study = optuna.load_study(study_name="s", storage=storage, sampler=optuna.samplers.RandomSampler(seed))
            study.optimize(objective, n_trials=3)

        if __name__ == "__main__":
            torch.ones(1, device={device.type!r})
            storage = "sqlite:///" + tempfile.mkdtemp() + "/study.db"
            optuna.create_study(study_name="s", storage=storage)
            context = multiprocessing.get_context("spawn")
            processes = [context.Process(target=search, args=(storage, seed)) for seed in range(2)]
            for process in processes:
                process.start()
            for process in processes:
                process.join()
            study = optuna.load_study(study_name="s", storage=storage)
            print(len(study.trials), study.best_value < 4)
    """
    assert run_script(script, timeout=240).output() == "6 True\n"
