"""What a gate is. Rows are in table.py, what they put in place in the modules beside it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch_mtia._versions import SUPPORTED_TORCH


@dataclass(frozen=True)
class Gate:
    """One name in PyTorch that is replaced."""

    name: str
    """The attribute, by its path in the module. With `entry`: the path of a table and, in brackets, how the entry is
    called here; an entry that is missing is added, and its original is None."""
    modules: tuple[str, ...]
    """The modules that have it: the one that defines it, and those that import it by value."""
    why: str
    replace: Callable[[Any], Any]
    """Takes the original and returns the replacement, which calls the original for other devices."""
    is_needed: Callable[[Any], bool]
    """Takes the original; false once upstream does what the replacement is for."""
    versions: tuple[tuple[int, int], ...] = SUPPORTED_TORCH
    """The versions (major, minor) of PyTorch in which it is replaced."""
    by_name: bool = False
    """Whether the replacement holds for the name that the device has when it is made; another opens it again."""
    entry: Callable[[], Any] | None = None
    """Makes the key, where one entry of a table is replaced."""
    filled_by: str = ""
    """The module whose import fills the table, where that is another one."""
    adds: bool = False
    """Whether an attribute that is missing is added; its original is None. Otherwise it is reported as skipped."""
    of_any_version: bool = False
    """Whether the module belongs to a library of which any version may be installed: a name that it lacks is left."""
