"""What a row of the tables is. What the rows put in place is in the modules beside this one."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any, NamedTuple

from torch_mtia._versions import SUPPORTED_TORCH


class Reason(enum.Enum):
    """Why a name is replaced."""

    DEVICES = "upstream names the devices that it serves"
    CUDA = "upstream takes every accelerator for a CUDA device"
    FAULT = "a fault of upstream's, mended for this device"
    SPEED = "speed"
    DEVICE = "this device does it in another way"
    MISSING = "PyTorch's module of the device lacks it"
    CLIENT = "a library that uses PyTorch names the devices"


class Gate(NamedTuple):
    """One name in PyTorch, Triton or a library that uses them, which is replaced."""

    name: str
    """The attribute, by its path in the module. With `entry`: the path of a table and, in brackets, how the entry is
    called here; an entry that is missing is added, and its original is None."""
    modules: tuple[str, ...]
    """The modules that have it: the one that defines it, and those that import it by value."""
    reason: Reason
    why: str
    replace: Callable[[Any], Any]
    """Takes the original and returns the replacement, which calls the original for other devices."""
    versions: tuple[tuple[int, int], ...] = SUPPORTED_TORCH
    """The versions (major, minor) of PyTorch in which it is replaced."""
    issue: str = ""
    """The file in docs/upstream that reports a fault."""
    by_name: bool = False
    """Whether the replacement depends on the name of the device, and is made again for another name."""
    entry: Callable[[], Any] | None = None
    """Makes the key, where one entry of a table is replaced."""
    filled_by: str = ""
    """The module whose import fills the table, where that is another one."""

    @property
    def is_of_a_client(self) -> bool:
        """Whether any version of the library may be installed: a name that it lacks is left."""
        return self.reason is Reason.CLIENT

    @property
    def edits_code(self) -> bool:
        return self.name.endswith(".__code__")

    @property
    def adds(self) -> bool:
        """Whether the name is missing and is added, so that its original is None."""
        return self.reason is Reason.MISSING
