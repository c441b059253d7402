"""Whether another accelerator, for which PyTorch is built, has devices on this machine.

Note [Beside another accelerator]
PyTorch has one accelerator in a process, and looks for MTIA before CUDA and XPU (getAccelerator in
aten/src/ATen/DeviceAccelerator.cpp). With `mtia` registered, it would be torch.accelerator and own all pinned memory,
and torch.compile for CUDA would fail, because it asserts that there is one kind of GPU. So `import torch` registers
nothing where there are other devices, unless TORCH_MTIA_AUTOLOAD asks for it; importing this package by name does.

Only names of files are looked at: a process that has initialized CUDA cannot fork, and loading a driver takes longer
than the rest of `import torch_mtia`.
"""

from __future__ import annotations

import glob
import os
import re
from typing import NamedTuple

import torch

from torch_mtia import environment

INTEL = "0x8086"


class _Accelerator(NamedTuple):
    name: str
    build: str | None
    """The version that PyTorch is built for; None: it is not, and can have no devices."""
    files: tuple[str, ...]
    """Patterns of the device files, of which one is there if a device is."""
    hidden_by: tuple[str, ...] = ()
    """Environment variables that list the devices that the process may use."""


def _accelerators() -> tuple[_Accelerator, ...]:
    version = torch.version
    wsl = "dev/dxg"
    return (
        _Accelerator(
            "CUDA",
            version.cuda,
            ("dev/nvidia[0-9]*", "dev/nvgpu", "dev/nvhost-gpu", wsl),
            ("CUDA_VISIBLE_DEVICES",),
        ),
        _Accelerator(
            "ROCm",
            version.hip,
            ("dev/kfd", wsl),
            ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"),
        ),
        _Accelerator("XPU", version.xpu, ("sys/class/drm/renderD*/device/vendor", wsl)),
    )


def present() -> str:
    """Returns the name of the first that has devices which this process may use, or ""."""
    root = environment.SYSTEM_ROOT.read_or_default(os.environ) or "/"
    for accelerator in _accelerators():
        if accelerator.build and not _is_hidden(accelerator) and _has_device(accelerator, root):
            return accelerator.name
    return ""


def _is_hidden(accelerator: _Accelerator) -> bool:
    """Lists end at the first entry that is no device: a number, or the identifier of a GPU or of a part of one."""
    values = (os.environ.get(name) for name in accelerator.hidden_by)
    return any(value is not None and not re.match(r"\s*([0-9]|GPU-|MIG-)", value) for value in values)


def _has_device(accelerator: _Accelerator, root: str) -> bool:
    paths = (path for pattern in accelerator.files for path in glob.iglob(os.path.join(glob.escape(root), pattern)))
    return any(not path.endswith("/vendor") or _vendor(path) == INTEL for path in paths)


def _vendor(path: str) -> str:
    try:
        with open(path) as file:
            return file.read().strip()
    except OSError:
        return ""
