"""Triton on mtia: the backend `mtia` of a stock Triton, which finds it through the entry point `triton.backends`.

That names `mtia.triton`, whose classes stand in for those of `compiler` and `driver` until Triton has use for them.
Nothing here is imported by `import torch`. See docs/triton.md.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch_mtia.portability.report import Report

__all__ = ["activate", "targets"]


def activate() -> None:
    """Makes Triton run `kernel[grid](...)` on mtia in this process.

    It is needed only beside a GPU that Triton supports: without one, Triton finds mtia alone.
    """
    from triton.runtime import driver

    from torch_mtia.triton.driver import MTIADriver

    driver.set_active(MTIADriver())


def targets(
    *names: str, bound: bool = False, refuse: bool = False, timeout: float = 300
) -> AbstractContextManager[Report]:
    """Returns a context whose report has the kernels that are launched on mtia in it, compiled for GPUs.

    The block runs as it would without. Kernels are compiled when the report is first read, or when the block ends.

    Args:
        names: of GPUs, as in Triton: "cuda:90", "hip:gfx942".
        bound: whether the first launch of each specialization is counted, for the least time that it takes there. It is
            slow, and its numbers may differ in the last bits.
        refuse: whether a launch that a target does not compile, or has no resources for, raises RefusedByTarget, an
            OutOfResources, with what the target says. Each kernel is compiled before its first launch in the block.
        timeout: seconds that the compiler of one kernel for one target may take.

    Raises:
        ValueError: a name is not that of a target, or there is none.
    """
    from torch_mtia.portability.report import targets

    return targets(*names, bound=bound, refuse=refuse, timeout=timeout)
