"""What the device costs before it does anything.

    python benchmarks/start.py

Each sample is a fresh process.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable

from timing import CPU, DEVICE, Case, Group, Side, Target, main, sampled_by

IMPORT = """
import time
start = time.perf_counter()
{before}
import torch
print(time.perf_counter() - start)
"""
# PyTorch looks for devices in any case, with a module that takes as long to import as the device: in the time measured.
NOT_INSTALLED = """
import importlib.metadata
found = importlib.metadata.entry_points
importlib.metadata.entry_points = lambda **group: [each for each in found(**group) if each.module != "torch_mtia"]
"""
FIRST_TENSOR = """
import time, torch
start = time.perf_counter()
torch.ones(16, device="DEVICE").sum().item()
print(time.perf_counter() - start)
"""


# As where pip has installed the package: with its bytecode.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def printed(script: str) -> Callable[[], Side]:
    """A side whose time is what the script prints, in seconds."""

    def measure() -> float:
        command = [sys.executable, "-c", script]
        return float(subprocess.check_output(command, env=ENVIRONMENT, text=True))

    return lambda: sampled_by(measure)


def process(*command: str) -> Callable[[], Side]:
    """A side whose time is that of a process, from start to exit."""

    def measure() -> float:
        start = time.perf_counter()
        subprocess.run([sys.executable, *command], env=ENVIRONMENT, stdout=subprocess.DEVNULL, check=True)
        return time.perf_counter() - start

    return lambda: sampled_by(measure)


CASES = (
    Case(
        "import torch",
        Group("importing torch", "`import torch` without torch_mtia"),
        mtia=printed(IMPORT.format(before="")),
        baseline=printed(IMPORT.format(before=NOT_INSTALLED)),
        target=Target(excess_us=10_000),
    ),
    Case(
        "first tensor",
        Group("first tensor of a process", CPU),
        mtia=printed(FIRST_TENSOR.replace("DEVICE", DEVICE)),
        baseline=printed(FIRST_TENSOR.replace("DEVICE", "cpu")),
        target=Target(most_us=60_000),
    ),
    Case(
        "python -m torch_mtia",
        Group("the report of versions", "a process that imports torch"),
        mtia=process("-m", "torch_mtia"),
        baseline=process("-c", "import torch"),
        target=Target(most_us=1_500_000),
    ),
)

if __name__ == "__main__":
    sys.exit(main(CASES, __doc__))
