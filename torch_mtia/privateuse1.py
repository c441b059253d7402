"""The backend under another device type, through PyTorch's PrivateUse1. See docs/privateuse1.md."""

from __future__ import annotations

import importlib
import inspect
import os
from pathlib import Path
from typing import Any

import torch
from torch.utils import backend_registration

import torch_mtia
from torch_mtia import _C, backend, environment
from torch_mtia import driver as drivers
from torch_mtia.import_hooks import after_import

__all__ = ["enable"]

_UNNAMED = "privateuseone"


def enable(name: str, driver: str | Path | None = None) -> None:
    """Registers the devices as `torch.device(name)` in place of `torch.device("mtia")`, with the module `torch.NAME`.

    Call it once in a process, before the first use of a device; a second call with the same name does nothing. It sets
    TORCH_MTIA_PRIVATEUSE1, so that processes started by this one do the same. From then on `torch.accelerator` uses the
    new type, and `torch.mtia` has no device.

    Args:
        name: the device type.
        driver: the path of the driver's library, unless TORCH_MTIA_RUNTIME names one.

    Raises:
        ValueError: the name is not an identifier, or PyTorch uses it already; or there is no such driver.
        RuntimeError: the devices are in use as `mtia` or have another name, or another backend has taken PrivateUse1.
            Nothing has changed then.
    """
    torch_mtia._load()  # another package's entry point may come before that of this one
    register_device_type(name, driver)


def register_device_type(name: str, driver: str | Path | None = None) -> None:
    """`enable`, for a caller that has loaded the package, or is about to have."""
    if backend.device_type() == name:
        return
    backend.check_name(name)
    if backend.device_type() != "mtia":
        raise RuntimeError(
            f"the devices are '{backend.device_type()}' in this process already, and cannot be '{name}' as well"
        )
    if (taken := torch._C._get_privateuse1_backend_name()) != _UNNAMED:
        raise RuntimeError(f"another backend has named PrivateUse1 '{taken}' in this process: there is only one")
    if _C._is_initialized():
        raise RuntimeError(
            f"the devices are in use as 'mtia' already: call enable('{name}') before the first use of one, or set "
            f"{environment.PRIVATEUSE1.name}={name} before the process starts"
        )
    if driver is not None:
        drivers.use(Path(driver))
    _C._register_privateuse1(name, lambda: backend_registration.rename_privateuse1_backend(name))
    backend.set_device_type(name)
    os.environ[environment.PRIVATEUSE1.name] = name
    torch._register_device_module(name, importlib.import_module("torch_mtia.device_module"))
    backend_registration.generate_methods_for_privateuse1_backend(for_storage=True)

    from torch_mtia import distributed, higher_order, inductor, kernels, lightning, upstream_gates

    distributed.register()
    higher_order.register()
    lightning.register()
    upstream_gates.apply_again(torch.__version__)
    after_import("torch._dynamo.eval_frame", _leave_out_device_module)
    inductor.register()
    kernels.register()
    if environment.settings().fallback:
        from torch_mtia import fallback

        fallback.register()


def _leave_out_device_module(eval_frame: Any) -> None:
    """PyTorch calls its functions from compiled code where nothing can be compiled; those of torch.mtia Dynamo leaves
    out as all of torch."""
    module = importlib.import_module("torch_mtia.device_module")
    for value in vars(module).values():
        if inspect.isfunction(value):
            eval_frame.skip_code(value.__code__)
