"""Inductor's choices for mtia, beside block sizes (block_sizes.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch._inductor import config
from torch._inductor.choices import InductorChoices
from torch._inductor.runtime.hints import ReductionHint
from torch._inductor.virtualized import V

from torch_mtia.inductor.cache_key import identity

if TYPE_CHECKING:
    from torch._inductor.codegen.simd_kernel_features import SIMDKernelFeatures

# A row that is reduced at once is read once. Milliseconds on one core at 2.8 GHz with AVX-512, at once and in blocks:
# softmax of 2048 x 8192: 19.4, 30.1; of 512 x 50257, padded to 65536: 36.8, 42.0; sum of 2048 x 2048: 0.85, 1.37.
LONGEST_ROW = 1 << 16


class MTIAChoices(InductorChoices):
    """Upstream's choices, but for kernels on mtia."""

    def uuid(self) -> str:
        """For the keys of Inductor's caches."""
        return identity()

    @staticmethod
    def should_use_persistent_reduction(features: SIMDKernelFeatures, cooperative_reduction: bool) -> bool:
        """Whether a kernel has all of what it reduces in one block. For other axes than the last it has not: there it
        adds one row after the other to sums of many columns."""
        if not _on_mtia() or not config.triton.persistent_reductions or cooperative_reduction:
            return InductorChoices.should_use_persistent_reduction(features, cooperative_reduction)
        is_short = V.graph.sizevars.statically_known_leq(features.reduction_numel, LONGEST_ROW)
        return bool(is_short) and features.get_reduction_hint() == ReductionHint.INNER


def _on_mtia() -> bool:
    device: torch.device | None = V.graph.current_device
    return device is not None and device.type == "mtia"
