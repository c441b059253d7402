"""Helion compiles for the device, its autotuner searches there, and its own TestCase chooses it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import helion
import helion.language as hl
import torch


@helion.kernel(config=helion.Config(block_sizes=[16, 16]))
def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(out.size()):
        out[tile] = x[tile] + y[tile]
    return out


@helion.kernel(config=helion.Config(block_sizes=[16, 16, 16]))
def matmul(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0), y.size(1)], dtype=x.dtype, device=x.device)
    for rows, columns in hl.tile([x.size(0), y.size(1)]):
        total = hl.zeros([rows, columns], dtype=torch.float32)
        for inner in hl.tile(x.size(1)):
            total = torch.addmm(total, x[rows, inner], y[inner, columns])
        out[rows, columns] = total.to(x.dtype)
    return out


@helion.kernel(config=helion.Config(block_sizes=[1]))
def softmax(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile, :] = torch.nn.functional.softmax(x[tile, :], dim=1)
    return out


@helion.kernel(config=helion.Config(block_sizes=[32], pid_type="persistent_blocked"))
def quarters(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = x[tile] // 4
    return out


def test_kernels_compute_what_pytorch_does(device: torch.device) -> None:
    x, y = torch.randn(2, 70, 50, device=device)
    torch.testing.assert_close(add(x, y), x + y)
    torch.testing.assert_close(matmul(x, y.t()), x @ y.t(), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(softmax(x), x.softmax(1))


def test_a_persistent_kernel_has_a_program_for_each_core(device: torch.device) -> None:
    x = torch.arange(-500, 500, device=device)
    assert quarters(x).tolist() == (torch.arange(-500, 500) // 4).tolist()


def run(script: Path, *arguments: str, **settings: str) -> str:
    """Returns what the script wrote on stderr."""
    process = subprocess.run(
        [sys.executable, str(script), *arguments],
        env=os.environ | settings,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=480,
    )
    assert process.returncode == 0, process.stderr
    return process.stderr


OF_ITS_SUITE = """
import unittest
import helion
import helion.language as hl
import torch
from helion._testing import DEVICE, TestCase, code_and_output

@helion.kernel(config=helion.Config(block_sizes=[32]))
def negated(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = -x[tile]
    return out

class OfItsSuite(TestCase):
    def test_it_runs_on_the_device(self):
        self.assertEqual(DEVICE, torch.device("mtia"))
        self.assertTrue(torch.mtia.is_initialized())
        x = torch.randn(100, device=DEVICE)
        code, result = code_and_output(negated, (x,))
        self.assertIn("tl.load", code)
        torch.testing.assert_close(result, -x)

unittest.main()
"""


def test_a_test_case_of_its_suite_chooses_the_device(tmp_path: Path) -> None:
    script = tmp_path / "test" / "of_its_suite.py"  # Helion's TestCase asks for a folder of that name
    script.parent.mkdir()
    script.write_text(OF_ITS_SUITE)
    assert "Ran 1 test" in run(script)


TUNED = """
import helion
import helion.language as hl
import torch

@helion.kernel()
def scale(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = x[tile] * 2
    return out

if __name__ == "__main__":  # the autotuner measures in a spawned process
    x = torch.randn(4096, device="mtia")
    torch.testing.assert_close(scale(x), x * 2)
"""


def test_the_autotuner_searches_once_and_another_process_takes_its_choice(tmp_path: Path) -> None:
    script = tmp_path / "tuned.py"
    script.write_text(TUNED)
    settings = {
        "HELION_AUTOTUNE_EFFORT": "quick",
        "HELION_AUTOTUNE_MAX_GENERATIONS": "1",
        "HELION_AUTOTUNE_BUDGET_SECONDS": "120",
        "HELION_CACHE_DIR": str(tmp_path / "cache"),
    }
    assert "Autotuning complete" in run(script, **settings)
    (choice,) = (tmp_path / "cache").rglob("*.best_config")
    assert "block_sizes" in choice.read_text()
    again = run(script, **settings, HELION_ASSERT_CACHE_HIT="1")
    assert "Autotuning complete" not in again
