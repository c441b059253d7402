"""Which architecture Inductor compiles kernels for. Upstream: torch/_inductor/runtime/triton_heuristics.py."""

from __future__ import annotations

from torch_mtia.triton.architecture import architecture


def build_codename() -> str:
    """The `arch` of Triton's target, such as "x86-64-v4". It touches no device: processes that only compile ask it."""
    return architecture()
