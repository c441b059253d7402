"""Lets autograd's device threads settle before the interpreter ends.

PyTorch's engine starts one thread a device at the first backward. Each takes the GIL to make itself known to Python,
and may take it once more to drop the last reference to a finished graph. A script that ends directly after a backward
can catch one of them there, and taking the GIL of a finalizing interpreter ends the process with an abort.
"""

from __future__ import annotations

import atexit
import contextlib
import pathlib
import time

import torch
from torch.autograd.graph import _engine_run_backward

from torch_mtia.backend import device_module, device_type

_TASKS = pathlib.Path("/proc/self/task")
_POLL_SECONDS = 0.0005
_MAX_POLLS = 2000


def _engine_states() -> list[str]:
    """Returns the scheduler's letter for each thread of the engine: "R" runs, "S" sleeps."""
    states = []
    for task in _TASKS.iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # threads end while we look
            if (task / "comm").read_text().startswith("pt_autograd"):
                states.append((task / "stat").read_text().rpartition(")")[2].split()[0])
    return states


def _settle() -> None:
    """Waits until every device's thread has taken part in a backward, and then until all of them are idle."""
    if device_module()._is_in_bad_fork() or not _engine_states():
        return
    # A device that cannot compute any more, or a script that ends with gradients switched off.
    with contextlib.suppress(RuntimeError), torch.inference_mode(False), torch.enable_grad():
        for index in range(device_module().device_count()):
            leaf = torch.empty(0, device=f"{device_type()}:{index}", requires_grad=True)  # there may be no memory left
            # Not Tensor.backward, whose check of a gradient imports modules: those that run text (as namedtuple does)
            # make Python forget that an interrupt ends the process.
            _engine_run_backward((leaf.relu(),), (leaf.detach(),), False, False, (), True, True)
    # A thread that waits for the GIL sleeps too; so it gets the chance to take it before each look.
    asleep = 0
    for _ in range(_MAX_POLLS):
        time.sleep(_POLL_SECONDS)
        asleep = asleep + 1 if set(_engine_states()) == {"S"} else 0
        if asleep == 3:
            break


def settle_at_exit() -> None:
    """Registers the wait. Called once, when the backend is loaded."""
    atexit.register(_settle)
