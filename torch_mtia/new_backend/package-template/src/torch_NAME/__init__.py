"""PyTorch's device `@NAME@`. `import torch` loads it, through the entry point of the group torch.backends."""

from __future__ import annotations

from pathlib import Path

__all__ = ["load"]

FOLDER = Path(__file__).resolve().parent


def load() -> None:
    """Makes the device known to PyTorch. Call it yourself only where TORCH_DEVICE_BACKEND_AUTOLOAD=0."""
    import torch

    from torch_mtia import privateuse1

    privateuse1.enable("@NAME@", driver=FOLDER / "driver.so")
    torch.ops.load_library(FOLDER / "operators.so")
