"""What of PyTorch a run has exercised, and what it never has: operators, dtypes, modules, optimizers, functions."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterable
from types import FrameType, ModuleType
from typing import Any

import torch

from torch_mtia.conformance import results as r
from torch_mtia.conformance.results import Result


@dataclasses.dataclass(frozen=True)
class Coverage:
    all: int
    never: list[str]


class Calls:
    """Notes which of some functions are called while it is open, in this thread, from wherever.

    By the interpreter's profiling hook and not by wrappers, since Dynamo knows functions by their identity.
    """

    def __init__(self, functions: dict[str, Callable[..., Any]]) -> None:
        self.names: set[str] = set()
        # By identity: code that Dynamo makes may have constants that cannot be hashed.
        self._by_code = {id(code): name for name, function in functions.items() if (code := _code_of(function))}
        self._by_function = {id(function): name for name, function in functions.items() if not _code_of(function)}

    def __enter__(self) -> Calls:
        sys.setprofile(self._called)
        return self

    def __exit__(self, *_exception: object) -> None:
        sys.setprofile(None)

    def _called(self, frame: FrameType, event: str, argument: Any) -> None:
        name = None
        if event == "call":
            name = self._by_code.get(id(frame.f_code))
        elif event == "c_call":
            name = self._by_function.get(id(argument))
        if name is not None:
            self.names.add(name)


def _code_of(function: Any) -> Any:
    return getattr(getattr(function, "__wrapped__", function), "__code__", None)


def functions_for(device: torch.device) -> dict[str, Callable[..., Any]]:
    """Returns the functions of torch.accelerator and of the device's module, by their names."""
    modules: list[ModuleType] = [torch.accelerator]
    if device.type != "cpu":
        modules.append(torch.get_device_module(device))
    found = {}
    for module in modules:
        for name in getattr(module, "__all__", dir(module)):
            function = getattr(module, name, None)
            if not name.startswith("_") and callable(function) and not isinstance(function, type):
                found[f"{module.__name__}.{name}"] = function
    return found


def coverage(results: Iterable[Result], functions: Iterable[str]) -> dict[str, Coverage]:
    """By what PyTorch's databases list, and by functions' names. A test that skips exercises nothing."""
    from torch.testing._internal.common_methods_invocations import op_db
    from torch.testing._internal.common_modules import module_db
    from torch.testing._internal.common_optimizers import optim_db

    from torch_mtia.conformance.database import dtype_name, full_name

    ran = [result for result in results if result.outcome != r.SKIPPED]
    parts = [result.test.split("/") for result in ran]
    operators = {result.operator for result in ran}
    typed = {f"{result.operator}/{result.dtype}" for result in ran if result.suite == "operators"}
    modules = {part[2] for part in parts if part[0] == "modules" and len(part) > 2}
    optimizers = {part[2] for part in parts if part[0] == "optimizers" and len(part) > 2}
    called = {name for result in ran for name in result.functions}
    every = {
        "operators": ([full_name(info) for info in op_db], operators),
        "operators, in each dtype of the CPU": (
            [f"{full_name(info)}/{dtype_name(dtype)}" for info in op_db for dtype in info.supported_dtypes("cpu")],
            typed,
        ),
        "modules": ([info.name for info in module_db], modules),
        "optimizers": ([info.name for info in optim_db], optimizers),
        "functions for devices": ([*functions], called),
    }
    return {what: Coverage(len(names), sorted({*names} - seen)) for what, (names, seen) in every.items()}
