"""Which templates, with which configurations, Inductor tries for mtia under max-autotune.

See torch/_inductor/template_heuristics. A configuration is a tile; what else it
has (stages, warps) is a GPU's. Upstream's lists hold up to 68 of them, of which many are the same tile.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._inductor.kernel.bmm import aten_bmm_dtype, bmm_template
from torch._inductor.kernel.mm import aten_mm_dtype, decompose_k_subgraph_template, mm_template
from torch._inductor.kernel.mm_plus_mm import mm_plus_mm_template
from torch._inductor.kernel_inputs import MMKernelInputs
from torch._inductor.lowering import lowerings
from torch._inductor.template_heuristics import triton as upstream
from torch._inductor.template_heuristics.aten import ATenConfigHeuristics
from torch._inductor.template_heuristics.decompose_k import DecomposeKConfigHeuristics
from torch._inductor.template_heuristics.registry import register_template_heuristic
from torch._inductor.template_heuristics.triton import GemmConfig

# (M, N, K); upstream cuts off what is beyond the operands. Small tiles are for products with fewer large ones than the
# machine has cores. In milliseconds on one core of a Zen 5, a linear layer with relu:
# fp32 1024 x 1024 x 256: 2.27, 2.21, 2.23, 2.27; 2048 x 256 x 1024: 4.19, 4.27, 4.19, 4.32
# bf16                    1.09, 1.15, 1.17, 1.20;                    2.14, 2.15, 2.20, 2.21
# int8                    0.68, 0.64, 0.70, 0.67;                    1.09, 1.14, 1.24, 1.17
TILES = ((512, 64, 256), (256, 128, 128), (256, 128, 64), (128, 128, 128), (64, 64, 64), (32, 64, 64))
EXHAUSTIVE = tuple((m, n, k) for m in (16, 32, 64, 128) for n in (32, 64, 128, 256) for k in (32, 64, 128))


def configurations(tiles: tuple[tuple[int, int, int], ...]) -> list[Any]:
    return [GemmConfig(m, n, k, num_stages=1, num_warps=1) for m, n, k in tiles]


class _Tiles:
    """Replaces the lists of configurations of upstream's heuristics."""

    def __init__(self) -> None:
        super().__init__()
        self.mm_configs = configurations(TILES)
        self.exhaustive_configs = configurations(EXHAUSTIVE)


class MatMul(_Tiles, upstream.MTIAMMTemplateConfigHeuristic):
    pass


class AddMatMul(_Tiles, upstream.MTIAAddMMTemplateConfigHeuristic):
    pass


class ScaledMatMul(_Tiles, upstream.MTIAScaledMMTemplateConfigHeuristic):
    def _get_acc_type(self, _dtype: torch.dtype) -> str:
        """Upstream's has sums for a result of e5m2 in e5m2, at which Triton aborts the process."""
        return "tl.float32"

    def adjust_kernel_inputs(self, kernel_inputs: Any, op_name: str) -> Any:
        """Upstream's asserts that two scales of one number have equally many dimensions."""
        mat_a, mat_b, *scales, bias = (*kernel_inputs.nodes(), None)[:5]
        view = lowerings[torch.ops.aten.view]
        scales = [view(scale, [1, 1]) if len(scale.get_size()) < 2 else scale for scale in scales]
        nodes = [mat_a, mat_b, *scales, *([] if bias is None else [bias])]
        adjusted = MMKernelInputs(nodes, out_dtype=kernel_inputs.out_dtype(), mat1_idx=0, mat2_idx=1)
        return super().adjust_kernel_inputs(adjusted, op_name)


class IntegerMatMul(_Tiles, upstream.MTIAInt8MMTemplateConfigHeuristic):
    pass


class SumOfMatMuls(_Tiles, upstream.MTIAMMPlusMMTemplateConfigHeuristic):
    def __init__(self) -> None:
        """Upstream takes none but tiles whose K is below the operands': short sums have one too."""
        super().__init__()
        self.mm_configs = configurations((*TILES, (64, 64, 32)))


HEURISTICS: tuple[tuple[Any, str | None, type], ...] = (
    (mm_template, None, MatMul),
    (bmm_template, None, MatMul),
    (mm_template, "addmm", AddMatMul),
    (bmm_template, "baddbmm", AddMatMul),
    (mm_template, "scaled_mm", ScaledMatMul),
    (mm_template, "int_mm", IntegerMatMul),
    (mm_plus_mm_template, None, SumOfMatMuls),
    (aten_mm_dtype, None, ATenConfigHeuristics),
    (aten_bmm_dtype, None, ATenConfigHeuristics),
    (decompose_k_subgraph_template, "mm", DecomposeKConfigHeuristics),
)


def register(device_type: str) -> None:
    """Has Inductor ask them for devices of the type."""
    for template, operator, heuristic in HEURISTICS:
        register_template_heuristic(template.uid, device_type, op_name=operator)(heuristic)
