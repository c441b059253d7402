"""Triton on mtia: the backend `mtia` of a stock Triton, which finds it through the entry point `triton.backends`.

That names `mtia.triton`, whose classes stand in for those of `compiler` and `driver` until Triton has use for them.
Nothing here is imported by `import torch`. See docs/triton.md.
"""

from __future__ import annotations

__all__ = ["activate"]


def activate() -> None:
    """Makes mtia the device that `kernel[grid](...)` runs on, in this process.

    Needed only where Triton also has a GPU to choose: without one, mtia is what it finds.
    """
    from triton.runtime import driver

    from torch_mtia.triton.driver import MTIADriver

    driver.set_active(MTIADriver())
