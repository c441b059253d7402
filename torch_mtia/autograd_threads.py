"""Lets autograd's device threads settle before the interpreter ends.

PyTorch's engine starts one thread a device at the first backward. Each takes the GIL once, to make itself known to
Python. A script that ends directly after its first backward can catch one of them at that point, and taking the GIL of
a finalizing interpreter ends the process with an abort.
"""

from __future__ import annotations

import atexit
import pathlib

import torch


def _engine_has_started() -> bool:
    names = pathlib.Path("/proc/self/task").glob("*/comm")
    return any(path.read_text().startswith("pt_autograd") for path in names)


def _settle() -> None:
    """Waits until every device's thread has taken part in a backward, so that none is still starting."""
    if torch.mtia._is_in_bad_fork() or not _engine_has_started():
        return
    for index in range(torch.mtia.device_count()):
        leaf = torch.empty(1, device=f"mtia:{index}", requires_grad=True)
        leaf.relu().backward()


def settle_at_exit() -> None:
    """Registers the wait. Called once, when the backend is loaded."""
    atexit.register(_settle)
