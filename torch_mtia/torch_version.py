"""What differs between the versions of PyTorch and Triton in _versions.py, and nothing else asks for the version.

The sources are written for the newest. csrc/device/TorchVersion.h is the counterpart for C++.
"""

from __future__ import annotations

import torch

from torch_mtia._versions import SUPPORTED_TORCH

_MAJOR, _MINOR, *_ = torch.__version__.split(".")
TORCH = (int(_MAJOR), int(_MINOR))


def before(major: int, minor: int) -> tuple[tuple[int, int], ...]:
    """The supported versions that are older."""
    return tuple(version for version in SUPPORTED_TORCH if version < (major, minor))


TEMPLATE_HEURISTICS = (
    "torch._inductor.template_heuristics" if TORCH < (2, 14) else "torch._inductor.heuristics.template"
)
"""The package whose modules register upstream's heuristics. In newer versions the old name is an alias of it, which
Inductor does not import."""


def has_block_pointers() -> bool:
    """Whether this Triton has tl.make_block_ptr, which 3.9 replaced by descriptors."""
    import triton.language

    return hasattr(triton.language, "advance")
