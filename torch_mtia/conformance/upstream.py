"""Runs test files of PyTorch and Triton, unmodified, on the device: what they need to find it.

PyTorch's device-generic tests take TORCH_TEST_DEVICES (upstream_device.py). Inductor's ask flags of
torch.testing._internal.inductor_utils, which know the devices that upstream tests on. Triton's have a conftest.py with
an option --device.
"""

from __future__ import annotations

import importlib
import os
import unittest
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

DEVICE_FILE = Path(__file__).with_name("upstream_device.py")


def is_of_triton(file: Path) -> bool:
    """Whether the file lies in a checkout of Triton."""
    return any((parent / "python" / "triton").is_dir() for parent in file.parents)


def arguments(files: Sequence[Path], device_type: str) -> list[str]:
    """pytest's arguments for these files. PyTorch's conftest.py is for its own machines; Triton's has the fixtures."""
    if any(is_of_triton(file) for file in files):
        return [f"--device={device_type}"]
    return ["--noconftest"]


def set_environment(device_type: str) -> None:
    """For the workers, which inherit it."""
    os.environ["PYTORCH_TESTING_DEVICE_ONLY_FOR"] = device_type
    if device_type == "mtia":
        os.environ["TORCH_TEST_DEVICES"] = str(DEVICE_FILE)


def asks_for_inductor(file: Path) -> bool:
    """Whether the file imports the flags that open_inductor_tests sets."""
    return any(f"torch.testing._internal.{name}" in file.read_text() for name in ("inductor_utils", "triton_utils"))


def open_inductor_tests(device: torch.device) -> None:
    """Sets the flags that Inductor's test files import, in this process."""
    total = torch.accelerator.get_memory_info(device)[1]

    def requires_gpu_with_enough_memory(least: float) -> Any:
        return unittest.skipIf(total < least, f"the device has less than {least / 1e9:g} GB: TORCH_MTIA_MEMORY")

    flags = importlib.import_module("torch.testing._internal.inductor_utils")
    for name, value in {
        "GPU_TYPE": device.type,
        "HAS_GPU": True,
        "HAS_GPU_AND_TRITON": True,
        "HAS_MULTIGPU": torch.accelerator.device_count() > 1,
        "IS_BIG_GPU": flags.LazyVal(lambda: flags.is_big_gpu(device)),
        "RUN_GPU": True,
        "requires_gpu": lambda: lambda test: test,
        "requires_gpu_with_enough_memory": requires_gpu_with_enough_memory,
    }.items():
        setattr(flags, name, value)
    decorators = importlib.import_module("torch.testing._internal.triton_utils")
    for name in ("requires_gpu", "requires_gpu_and_triton"):
        setattr(decorators, name, lambda test: test)
