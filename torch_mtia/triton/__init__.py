"""Triton on mtia: the backend `mtia` of a stock Triton, which finds it through the entry point `triton.backends`.

That names `mtia.triton`, whose classes stand in for those of `compiler` and `driver` until Triton has use for them.
Nothing here is imported by `import torch`. See docs/triton.md.
"""

from __future__ import annotations

__all__ = ["activate"]


def activate() -> None:
    """Makes Triton run `kernel[grid](...)` on mtia in this process.

    It is needed only beside a GPU that Triton supports: without one, Triton finds mtia alone.
    """
    from triton.runtime import driver

    from torch_mtia.triton.driver import MTIADriver

    driver.set_active(MTIADriver())
