"""What differs between versions of PyTorch (those of _versions.py) and of Triton (3.6 to 3.9); nothing else asks which.

The sources are written for the newest. csrc/device/TorchVersion.h is the counterpart for C++.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from torch_mtia._versions import SUPPORTED_TORCH

_MAJOR, _MINOR, *_ = torch.__version__.split(".")
TORCH = (int(_MAJOR), int(_MINOR))


def before(major: int, minor: int) -> tuple[tuple[int, int], ...]:
    """Returns the supported versions that are older."""
    return tuple(version for version in SUPPORTED_TORCH if version < (major, minor))


def since(major: int, minor: int) -> tuple[tuple[int, int], ...]:
    """Returns the supported versions from this one on."""
    return tuple(version for version in SUPPORTED_TORCH if version >= (major, minor))


TEMPLATE_HEURISTICS = (
    "torch._inductor.template_heuristics" if TORCH < (2, 14) else "torch._inductor.heuristics.template"
)
"""The package whose modules register upstream's heuristics. In newer versions the old name is an alias, which Inductor
does not import."""


def run_passes(manager: Any, module: Any, name: str) -> None:
    """Runs Triton's passes; before 3.7 they have no name."""
    try:
        manager.run(module, name)
    except TypeError:
        manager.run(module)


@functools.cache
def descriptors_round() -> bool:
    """Whether this Triton's descriptors say if fp32 is rounded to tf32, as from 3.7 on."""
    from triton.tools.tensor_descriptor import TensorDescriptor

    return "round_f32_to_tf32" in TensorDescriptor.__dataclass_fields__


def fuses_products(requested: bool | None) -> bool:
    """Whether a kernel rounds a product and a sum once. From Triton 3.9 on, a setting overrules what it asks for."""
    from triton import knobs

    if getattr(knobs.language, "force_disable_fp_fusion", False):
        return False
    return bool(knobs.language.default_fp_fusion if requested is None else requested)


def rewrite_block_pointers(manager: Any) -> None:
    """A pass up to Triton 3.7; 3.8 has made pointers of them when it comes to passes."""
    from triton._C.libtriton import passes

    if hasattr(passes.ttir, "add_rewrite_tensor_pointer"):
        passes.ttir.add_rewrite_tensor_pointer(manager)


def has_block_pointers() -> bool:
    """Whether this Triton has tl.make_block_ptr, which 3.9 replaced by descriptors."""
    import triton.language

    return hasattr(triton.language, "advance")
