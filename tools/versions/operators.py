"""What the overlay uses of one version's native_functions.yaml: its rows, cut down to what is merged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_FIELDS = (
    *("func", "structured", "structured_delegate", "structured_inherits", "ufunc_inner_loop", "precomputed"),
    *("device_check", "device_guard", "autogen", "use_const_ref_for_mutable_tensors"),
)
"""Of a row, what decides how a kernel of it is declared and registered."""
_TAGS = ("nondeterministic_seeded", "inplace_view")
"""The tags that torchgen checks."""
_KEYS = ("CPU", "CompositeExplicitAutograd", "CompositeImplicitAutograd")
"""Of a dispatch table, the keys whose kernels rows of the overlay name."""


def used(overlay: Sequence[Mapping[str, Any]], upstream: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Upstream's rows of the operators that the overlay names, with all overloads.

    A row may run the kernel of another overload, and torchgen groups them.
    """
    groups = {_group(row["operator"]) for row in overlay}
    return [_cut(row) for func, row in upstream.items() if _group(func.partition("(")[0]) in groups]


def _group(name: str) -> str:
    """The name that torchgen's groups have in common, of the functional, the in-place and the out= operator."""
    return name.partition(".")[0].removesuffix("_").removesuffix("_functional")


def _cut(row: Mapping[str, Any]) -> dict[str, Any]:
    cut = {field: without_lines(row[field]) for field in _FIELDS if field in row}
    tags = row.get("tags", [])
    if kept_tags := [tag for tag in ([tags] if isinstance(tags, str) else tags) if tag in _TAGS]:
        cut["tags"] = kept_tags
    dispatch = {
        ", ".join(kept): kernel
        for keys, kernel in without_lines(row.get("dispatch", {})).items()
        if (kept := [key for key in (each.strip() for each in keys.split(",")) if key in _KEYS])
    }
    return {**cut, "dispatch": dispatch} if dispatch else cut


def without_lines(value: Any) -> Any:
    """The loader adds the number of its line to every mapping."""
    if not isinstance(value, dict):
        return value
    return {key: without_lines(each) for key, each in value.items() if key != "__line__"}
