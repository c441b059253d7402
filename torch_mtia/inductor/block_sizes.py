"""How many elements a program of a generated kernel computes on mtia.

Inductor tries some configurations of each kernel, which differ in what only a GPU has. Here a kernel gets one, so that
it is compiled once and never benchmarked, unless autotuning is asked for. Figures are milliseconds on one core at 2.8
GHz with AVX-512, for 2048 x 2048 values of fp32.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from torch._inductor.runtime.hints import HeuristicType, ReductionHint
from torch._inductor.runtime.triton_compat import Config

from torch_mtia.backend import device_type

# A program is a call: its cost does not show from 512 elements on (gelu: 6.4 with 512, 7.0 with 1024, 7.1 with 2048).
POINTWISE = 1024
# Of a transposed operand, several cache lines both ways, within the first-level cache (x.t() + y, in milliseconds on an
# AMD EPYC of the Zen 5 kind: 3.4 with 64 x 16, 64 x 32 and 64 x 64, 2.1 with 128 x 32, 1.5 with 128 x 64).
TILES = {1: {"XBLOCK": POINTWISE}, 2: {"XBLOCK": 128, "YBLOCK": 64}, 3: {"XBLOCK": 16, "YBLOCK": 8, "ZBLOCK": 8}}
# Rows that are shorter share a program.
SHORT_ROW = 1024
# Of a row that is too long to be reduced at once (softmax of 512 x 50257: 47.6 with 256, 56.3 with 2048).
PART_OF_ROW = 256
# Reductions over another axis than the last add one row after the other to sums of many columns (sum over the first
# axis: 1.8, in blocks of 64 rows 9.6; batch norm: 8.1 and 16.2); of fewer, if there would be fewer programs than cores.
# Long pieces of rows count for more than many programs (batch norm on one core and on two, with one program for each
# of two cores: 3.6 and 1.9; with four: 4.8 and 2.7).
COLUMNS = 2048
FEWEST_COLUMNS = 128

Function = Callable[..., Any]


def pointwise(original: Function) -> Function:
    """Replaces torch._inductor.runtime.triton_heuristics.pointwise."""

    def pointwise(
        size_hints: dict[str, int],
        triton_meta: dict[str, Any],
        filename: str | None = None,
        inductor_meta: dict[str, Any] | None = None,
        return_configs: bool = False,
        **options: Any,
    ) -> Any:
        from torch._inductor.runtime import triton_heuristics

        inductor_meta = {} if inductor_meta is None else inductor_meta
        arguments: dict[str, Any] = {"filename": filename, "inductor_meta": inductor_meta}
        if not _decides(triton_meta, inductor_meta) or "combo_grid_meta" in inductor_meta:
            return original(size_hints, triton_meta, return_configs=return_configs, **arguments, **options)
        configs = [_config({f"{axis.upper()}BLOCK": size for axis, size in size_hints.items()}, TILES[len(size_hints)])]
        if return_configs:
            return configs
        return triton_heuristics.cached_autotune(
            size_hints,  # type: ignore[arg-type]
            configs,
            triton_meta=triton_meta,
            heuristic_type=HeuristicType.POINTWISE,
            **arguments,
        )

    return pointwise


def reduction(original: Function) -> Function:
    """Replaces torch._inductor.runtime.triton_heuristics._reduction_configs."""

    def _reduction_configs(
        *, size_hints: dict[str, int], inductor_meta: dict[str, Any], triton_meta: dict[str, Any], **options: Any
    ) -> list[Config]:
        if not _decides(triton_meta, inductor_meta) or set(size_hints) != {"x", "r0_"}:
            return original(  # type: ignore[no-any-return]
                size_hints=size_hints, inductor_meta=inductor_meta, triton_meta=triton_meta, **options
            )
        if inductor_meta.get("no_x_dim"):  # of a scan that programs share, each a part of one row
            return [_config({}, {"XBLOCK": 1, "R0_BLOCK": PART_OF_ROW})]
        if inductor_meta["reduction_hint"] == ReductionHint.INNER:
            return [_config({}, {"XBLOCK": _rows(size_hints), "R0_BLOCK": PART_OF_ROW})]
        share = size_hints["x"] // len(os.sched_getaffinity(0))
        return [_config({}, {"XBLOCK": _power_of_two(min(COLUMNS, max(FEWEST_COLUMNS, share))), "R0_BLOCK": 1})]

    return _reduction_configs


def persistent_reduction(original: Function) -> Function:
    """Replaces torch._inductor.runtime.triton_heuristics._persistent_reduction_configs."""

    def _persistent_reduction_configs(
        size_hints: dict[str, int], reduction_hint: Any, inductor_meta: dict[str, Any], triton_meta: dict[str, Any]
    ) -> list[Config]:
        is_ours = _decides(triton_meta, inductor_meta) and set(size_hints) == {"x", "r0_"}
        if not is_ours or inductor_meta.get("RSPLIT_SIZE"):
            return original(size_hints, reduction_hint, inductor_meta, triton_meta)  # type: ignore[no-any-return]
        return [_config({}, {"XBLOCK": _rows(size_hints)})]

    return _persistent_reduction_configs


def _decides(triton_meta: dict[str, Any], inductor_meta: dict[str, Any]) -> bool:
    autotunes = ("max_autotune", "max_autotune_pointwise", "coordinate_descent_tuning")
    return triton_meta["device"].type == device_type() and not any(inductor_meta.get(name) for name in autotunes)


def _config(sizes: dict[str, int], blocks: dict[str, int]) -> Config:
    return Config({name: min(block, sizes.get(name, block)) for name, block in blocks.items()})


def _rows(size_hints: dict[str, int]) -> int:
    return max(1, _power_of_two(SHORT_ROW // size_hints["r0_"]))


def _power_of_two(number: int) -> int:
    """The largest that is not greater; 0 for 0."""
    return 1 << number.bit_length() >> 1
