"""What the device costs before it does anything.

    python benchmarks/start.py

Each sample is a fresh process. `import torch` is compared with itself where the device is not installed, the rest with
the CPU device.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable

from timing import DEVICE, Bar, Case, Side, main

IMPORT = "import time; start = time.perf_counter(); import torch; print(time.perf_counter() - start)"
# PyTorch looks for devices in any case.
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

    return lambda: Side(lambda: None, lambda: None, lambda: None, measure)


def whole(*command: str) -> Callable[[], Side]:
    """A side whose time is that of a whole process."""

    def measure() -> float:
        start = time.perf_counter()
        subprocess.run([sys.executable, *command], env=ENVIRONMENT, stdout=subprocess.DEVNULL, check=True)
        return time.perf_counter() - start

    return lambda: Side(lambda: None, lambda: None, lambda: None, measure)


CASES = (
    Case(
        "import torch",
        ours=printed(IMPORT),
        peer=printed(NOT_INSTALLED + IMPORT),
        peer_name="without",
        bar=Bar(excess_us=10_000),
    ),
    Case(
        "first tensor",
        ours=printed(FIRST_TENSOR.replace("DEVICE", DEVICE)),
        peer=printed(FIRST_TENSOR.replace("DEVICE", "cpu")),
        bar=Bar(most_us=60_000),
    ),
    Case(
        "python -m torch_mtia",
        ours=whole("-m", "torch_mtia"),
        peer=whole("-c", "import torch"),
        peer_name="import torch",
        bar=Bar(most_us=1_500_000),
    ),
)

if __name__ == "__main__":
    sys.exit(main(CASES, __doc__))
