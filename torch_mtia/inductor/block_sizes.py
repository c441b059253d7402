"""How many elements a program of a generated kernel computes on mtia.

Inductor tries some configurations of each kernel, which differ in what only a GPU has. Here a kernel gets one, so that
it is compiled once and never benchmarked, unless autotuning is asked for. Figures are milliseconds on one core at 2.8
GHz with AVX-512, for 2048 x 2048 values of fp32.
"""

from __future__ import annotations

import os
from typing import Any

from torch._inductor.runtime.hints import HeuristicType, ReductionHint
from torch._inductor.runtime.triton_compat import Config

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

Sizes = dict[str, int]


def chosen(
    configs: list[Config],
    heuristic: HeuristicType,
    size_hints: Sizes | None,
    inductor_meta: dict[str, Any],
) -> list[Config]:
    """Returns the one configuration of a kernel on the device, or `configs` where autotuning is asked for."""
    if any(inductor_meta.get(name) for name in ("max_autotune", "max_autotune_pointwise", "coordinate_descent_tuning")):
        return configs
    if "combo_tuning_groups" in inductor_meta:
        return _of_combined_kernels(configs, inductor_meta)
    if size_hints is None or "RSPLIT" in configs[0].kwargs:
        return configs
    config = _config_of(heuristic.name.lower(), size_hints, inductor_meta)
    return configs if config is None else [config]


def _of_combined_kernels(configs: list[Config], inductor_meta: dict[str, Any]) -> list[Config]:
    """Gives each of several kernels in one the blocks that it has by itself."""
    combined = inductor_meta["combo_grid_meta"]
    for group in inductor_meta["combo_tuning_groups"]:
        for i in group["member_indices"]:
            meta = {
                **combined.get(f"inductor_meta_{i}", {}),
                "reduction_hint": getattr(ReductionHint, str(combined.get(f"reduction_hint_{i}")), None),
            }
            config = _config_of(combined[f"heuristic_{i}"], combined[f"size_hints_{i}"], meta)
            if config is not None:
                group["configs"] = [config]
                blocks = {f"{name}_{i}": block for name, block in config.kwargs.items()}
                configs[0].kwargs.update({name: blocks[name] for name in blocks.keys() & configs[0].kwargs.keys()})
    return configs


def _config_of(heuristic: str, sizes: Sizes, inductor_meta: dict[str, Any]) -> Config | None:
    match heuristic:
        case "pointwise":
            return _config({f"{axis.upper()}BLOCK": size for axis, size in sizes.items()}, TILES[len(sizes)])
        case "reduction" if set(sizes) == {"x", "r0_"}:
            return _config({}, _reduction(sizes, inductor_meta))
        case "split_scan" if set(sizes) == {"x", "r0_"}:
            blocks = _reduction(sizes, inductor_meta)
            least = inductor_meta.get("min_split_scan_rblock", PART_OF_ROW)
            return _config({}, blocks | {"R0_BLOCK": max(least, blocks["R0_BLOCK"])})
        case "persistent_reduction" if set(sizes) == {"x", "r0_"} and not inductor_meta.get("RSPLIT_SIZE"):
            return _config({}, {"XBLOCK": _rows(sizes)})
    return None


def _reduction(sizes: Sizes, inductor_meta: dict[str, Any]) -> Sizes:
    if inductor_meta.get("no_x_dim"):  # of a scan that programs share, each a part of one row
        return {"XBLOCK": 1, "R0_BLOCK": PART_OF_ROW}
    if inductor_meta["reduction_hint"] == ReductionHint.INNER:
        return {"XBLOCK": _rows(sizes), "R0_BLOCK": PART_OF_ROW}
    share = sizes["x"] // len(os.sched_getaffinity(0))
    return {"XBLOCK": _power_of_two(min(COLUMNS, max(FEWEST_COLUMNS, share))), "R0_BLOCK": 1}


def _config(sizes: Sizes, blocks: Sizes) -> Config:
    return Config({name: min(block, sizes.get(name, block)) for name, block in blocks.items()})


def _rows(sizes: Sizes) -> int:
    return max(1, _power_of_two(SHORT_ROW // sizes["r0_"]))


def _power_of_two(number: int) -> int:
    """Returns the largest that is not greater; 0 for 0."""
    return 1 << number.bit_length() >> 1
