"""Replacements in Lightning, whose accelerators other than its own are on the CPU in places."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import torch

from torch_mtia.backend import device_type
from torch_mtia.clients.replacements import named_instead_of_cpu
from torch_mtia.lightning import is_accelerator

Function = Callable[..., Any]


def accelerator_instead_of_cpu(original: Function) -> Any:
    return staticmethod(named_instead_of_cpu(original))


def on_its_device(original: Function) -> Function:
    @functools.wraps(original)
    def _choose_strategy(self: Any) -> Any:
        strategy = original(self)
        if isinstance(strategy, str) or not is_accelerator(self.accelerator):
            return strategy
        return type(strategy)(device=self._parallel_devices[0])

    return _choose_strategy


def cast_on_mtia(original: Function) -> Function:
    @functools.wraps(original)
    def _check_and_init_precision(self: Any) -> Any:
        if not is_accelerator(self.accelerator):
            return original(self)
        with warnings.catch_warnings():  # of a scaler for CUDA, in whose place comes another
            warnings.filterwarnings("ignore", message=".*CUDA is not available")
            precision = original(self)
        if getattr(precision, "device", None) == "cuda":
            precision.device = device_type()
            if precision.scaler is not None:
                precision.scaler = torch.amp.GradScaler(device_type())
        return precision

    return _check_and_init_precision


def not_in_a_stream_of_cuda(original: Function) -> Function:
    """Leaves out the numbers of devices: they only say that DistributedDataParallel is made in a stream of torch.cuda,
    and where barriers are."""

    @functools.wraps(original)
    def determine_ddp_device_ids(self: Any) -> list[int] | None:
        return None if self.root_device.type == device_type() else original(self)

    return determine_ddp_device_ids
