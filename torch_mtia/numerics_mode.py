"""`torch_mtia.numerics`: which bits are promised. See docs/accuracy.md."""

from __future__ import annotations

from types import TracebackType

from torch_mtia import _C
from torch_mtia.environment import NUMERICS

_mode = NUMERICS[0]


class numerics:
    """Sets which bits the process promises, from the call on; in a `with` statement, until the end of the block, which
    restores the mode that was set before the call.

    - `"default"`: none.
    - `"eager_equals_compiled"`: sums, means, norms, softmax, variances and matmuls have the same bits
      eager and compiled.
    - `"batch_invariant"`: also, rows of matmuls, convolutions, attention and of those functions do not depend on how
      many rows there are, and no result of an operator on the number of threads.

    The mode is the process's, like that of `torch.use_deterministic_algorithms`: it applies to all threads, a backward
    among them. Graphs replay as they were captured. Compiled functions are compiled for each mode that they are called
    in.

    Raises:
        ValueError: there is no such mode.
        RuntimeError: `"batch_invariant"` with a driver that has no host view, where operators are not this package's.
    """

    def __init__(self, mode: str) -> None:
        if mode not in NUMERICS:
            raise ValueError(f"mode must be one of {', '.join(map(repr, NUMERICS))}, not {mode!r}")
        self._mode, self._previous = mode, _mode
        _set(mode)

    def __enter__(self) -> None:
        _set(self._mode)

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        _set(self._previous)

    @staticmethod
    def current() -> str:
        """Returns the mode of the process."""
        return _mode


def _set(mode: str) -> None:
    global _mode
    if mode == "batch_invariant" and "host_view" not in _C._driver_info()["capabilities"]:
        raise RuntimeError(
            "numerics('batch_invariant') needs a driver with a host view of its memory, on which the package's own "
            "matmuls run"
        )
    _C._set_batch_invariant(mode == "batch_invariant")
    _mode = mode
