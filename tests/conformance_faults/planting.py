"""What every fault is made with: its name, the tests that must see it, and operators that are replaced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.utils import _pytree as pytree

from torch_mtia import environment

DEVICE = environment.device_type()
KEY = "MTIA" if DEVICE == "mtia" else "PrivateUse1"
ATEN = torch.library.Library("aten", "IMPL")


class Fault(NamedTuple):
    tests: str  # a pattern
    kind: str  # how they fail
    plant: Callable[[], None]


FAULTS: dict[str, Fault] = {}


def fault(tests: str, kind: str = "wrong") -> Callable[[Callable[[], None]], Callable[[], None]]:
    def register(plant: Callable[[], None]) -> Callable[[], None]:
        FAULTS[plant.__name__] = Fault(tests, kind, plant)
        return plant

    return register


def on_the_cpu(value: Any) -> Any:
    return pytree.tree_map(lambda leaf: leaf.cpu() if isinstance(leaf, torch.Tensor) else leaf, value)


def replace(operator: str, kernel: Callable[..., Any]) -> None:
    """`kernel` takes the function that computes on the CPU, and the operator's arguments."""
    name, _, overload = operator.partition(".")
    function = getattr(getattr(torch.ops.aten, name), overload or "default")

    def computed(*args: Any, **kwargs: Any) -> Any:
        host = {key: torch.device("cpu") if key == "device" else value for key, value in kwargs.items()}
        return function(*on_the_cpu(args), **on_the_cpu(host))

    ATEN.impl(operator, lambda *args, **kwargs: kernel(computed, *args, **kwargs), KEY)


def changed(operator: str, change: Callable[[Any], Any]) -> None:
    """The operator's result is another one."""

    def kernel(compute: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        result = change(compute(*args, **kwargs))
        return pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.to(DEVICE), result)

    replace(operator, kernel)
