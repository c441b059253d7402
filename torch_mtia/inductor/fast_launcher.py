"""What a kernel of generated code is launched with once its configuration is chosen.

Inductor writes a Python function for each kernel, which computes the grid and calls Triton's launcher. This one is a
builtin function: it computes the grid, with that function, only when a number among the arguments is another one than
at the last call, and launches at once.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

from torch_mtia import _C


def make_fast_launcher(launcher: Any) -> Callable[..., None] | None:
    """In place of a launcher of `TritonCompileResult.make_launcher`; None if it is none whose arguments are known."""
    scope, code = launcher.__globals__, launcher.__code__
    names = code.co_varnames[: code.co_argcount]
    runner = scope["runner"]
    signature = scope["bin"].src.signature
    kinds = [signature.get(name, "i64") for name in names[:-1]]  # upstream adds sizes of grids to the arguments
    launched = [name for name, kind in signature.items() if kind != "constexpr"]
    if (
        not _C._is_launcher(runner)
        or names[-1] != "stream"
        or not set(launched) <= set(names)
        or not all(isinstance(kind, str) and "tensordesc" not in kind for kind in kinds)
    ):
        return None
    compute_grid = FunctionType(code, {**scope, "runner": _C._record_grid}, launcher.__name__)
    return _C._fast_launcher(
        launcher,
        compute_grid,
        runner,
        scope["function"],
        scope["launch_enter_hook"],
        scope["launch_exit_hook"],
        [names.index(name) if name in launched else -1 for name in signature],
        [place for place, kind in enumerate(kinds) if not kind.startswith("*")],
        len(names) - 1,
    )
