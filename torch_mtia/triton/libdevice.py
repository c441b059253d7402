"""The functions of `triton.language.extra.libdevice`, by the symbols that Triton gives them (`__nv_...`).

Placeholder until filled below.
"""
from __future__ import annotations

from collections.abc import Callable

from torch_mtia.triton.llvm import Value

FUNCTIONS: dict[str, Callable[..., Value]] = {}
