"""What test suites of other projects call before the first Triton kernel: Helion's and tritonbench's.

In a runtime that is not published, it loads what launches kernels. Here Triton's driver does that at the first launch.
"""

from __future__ import annotations

import torch


def init() -> None:
    """Initializes the devices, if nothing has used one yet."""
    torch.mtia.init()
