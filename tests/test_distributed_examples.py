"""The example of training in parallel: its losses are those of one process, also where a process dies."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

from torch_mtia.environment import settings

EXAMPLES = Path(__file__).parent.parent / "examples"
EXAMPLE = EXAMPLES / "train_fsdp2.py"
STEPS = 8
LAUNCHER = ("-m", "torch.distributed.run", "--standalone", "--max-restarts=1")


def train(folder: Path, ranks: int, *options: str, script: Path = EXAMPLE, steps: int = STEPS) -> list[float]:
    launcher = (*LAUNCHER, f"--nproc-per-node={ranks}") if ranks > 1 else ()
    finished = subprocess.run(
        [sys.executable, *launcher, str(script), f"--steps={steps}", "--losses=losses.json", *options],
        cwd=folder,
        env=os.environ | {"OMP_NUM_THREADS": "1", "TORCH_MTIA_MEMORY": "2G"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    losses: list[float] = json.loads((folder / "losses.json").read_text())
    assert len(losses) == steps
    return losses


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """The losses of one process."""
    return train(tmp_path_factory.mktemp("one process"), 1)


@pytest.mark.wide
def test_any_number_of_processes_goes_on_from_a_checkpoint(expected: list[float], tmp_path: Path) -> None:
    options = ("--checkpoint=checkpoints", "--save-every=4")
    losses = train(tmp_path, 2, *options, steps=6)
    torch.testing.assert_close(losses, expected[:6], rtol=1e-5, atol=0)
    resumed = train(tmp_path, 1, *options)
    assert resumed[:4] == losses[:4]
    torch.testing.assert_close(resumed, expected, rtol=1e-5, atol=0)


@pytest.mark.wide
def test_a_process_that_is_killed_is_started_again_and_its_training_goes_on(tmp_path: Path) -> None:
    (tmp_path / "undisturbed").mkdir()
    undisturbed = train(tmp_path / "undisturbed", 2)
    script = tmp_path / "dies_once.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import os, signal, sys
            sys.path.insert(0, {str(EXAMPLES)!r})
            import train_fsdp2

            class Training(train_fsdp2.Training):
                def step(self, inputs, targets):
                    if len(self.losses) == 6 and os.environ["RANK"] == "1":
                        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
                            os.kill(os.getpid(), signal.SIGKILL)
                        with open("restarted", "x"):
                            pass
                    super().step(inputs, targets)

            train_fsdp2.Training = Training
            train_fsdp2.main()
            """
        )
    )
    losses = train(tmp_path, 2, "--checkpoint=checkpoints", "--save-every=4", script=script)
    assert (tmp_path / "restarted").exists()
    assert losses == undisturbed


@pytest.mark.wide
def test_mixed_precision_trains_as_well(expected: list[float], tmp_path: Path) -> None:
    torch.testing.assert_close(train(tmp_path, 2, "--bfloat16"), expected, rtol=2e-2, atol=0)


@pytest.mark.wide
def test_a_trace_has_collectives_in_a_stream_of_their_own(tmp_path: Path) -> None:
    train(tmp_path, 2, "--trace=trace.json")
    streams: dict[str, set[int]] = {}
    for event in json.loads((tmp_path / "trace.json").read_text())["traceEvents"]:
        if event.get("cat") == ("kernel" if settings().privateuse1 else "mtia_ccp_events"):
            streams.setdefault(event["name"], set()).add(event["tid"])
    (collectives,) = streams["c10d::_allgather_base"]
    assert streams["c10d::_reduce_scatter_base"] == {collectives}
    assert collectives not in streams["aten::addmm"]
