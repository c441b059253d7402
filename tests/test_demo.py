"""The demos train the same network on both devices and find them in agreement."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.conftest import RunScript
    from tests.interpreter import Finished

EXAMPLES = Path(__file__).parent.parent / "examples"


def run_demo(run_script: RunScript, name: str, *options: str) -> Finished:
    return run_script(
        f"""
        import runpy, sys
        sys.path.insert(0, {str(EXAMPLES)!r})
        sys.argv = [{name!r}, *{options!r}]
        try:
            runpy.run_path({str(EXAMPLES / name)!r}, run_name="__main__")
        finally:
            from torch._dynamo.utils import counters
            print("graphs:", counters["stats"]["unique_graphs"])
        """,
        timeout=300,
    )


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("name", "length", "final"),
    [
        ("train_digits.py", ("--epochs", "2"), 0.5),
        pytest.param("train_digits.py", ("--epochs", "2", "--compile"), 0.5, marks=pytest.mark.slow),
        pytest.param("train_text.py", ("--steps", "25"), 0.8, marks=[pytest.mark.slow, pytest.mark.wide]),
    ],
    ids=["digits", "digits, compiled", "text"],
)
def test_a_demo_compares_two_devices(
    name: str, length: tuple[str, ...], final: float, run_script: RunScript, tmp_path: Path
) -> None:
    options = ("--compare", "--allow-fallback", "--losses", "losses.json", "--output", "loss.png")
    finished = run_demo(run_script, name, *options, *length)
    assert "CPU fallback" in finished.output()
    assert ("graphs: 0\n" in finished.stdout) == ("--compile" not in length)
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")
    there, host = json.loads((tmp_path / "losses.json").read_text())
    assert (there["device"], host["device"]) == ("mtia", "cpu")
    assert len(there["losses"]) == len(host["losses"]) > 20
    assert there["losses"][-1] < there["losses"][0] * final


def test_a_training_step_must_not_fall_back(run_script: RunScript) -> None:
    finished = run_script(
        f"""
        import argparse, sys, torch
        sys.path.insert(0, {str(EXAMPLES)!r})
        import training

        options = argparse.Namespace(allow_fallback=False, compile=False)

        library = torch.library.Library("demo", "DEF")  # an operator that has no kernel for mtia
        library.define("loss(Tensor y) -> Tensor")
        library.impl("loss", lambda y: y.sum(), "CPU")
        model = torch.nn.Linear(4, 4).to("mtia")
        optimizer = torch.optim.SGD(model.parameters())
        network = training.Training(model, optimizer, lambda y, targets: torch.ops.demo.loss(y))
        try:
            training.train("mtia", network, [(torch.rand(2, 4), torch.rand(2))], 1, lambda: 0.0, options)
        except NotImplementedError as error:
            print(error)
        """
    )
    assert "inside torch_mtia.fallback.forbid()" in finished.output()


def test_dropout_cannot_be_compared(run_script: RunScript) -> None:
    finished = run_demo(run_script, "train_text.py", "--compare", "--dropout", "0.1")
    assert finished.returncode == 2
    assert "--dropout 0" in finished.stderr
