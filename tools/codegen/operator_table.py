"""Writes docs/operators.md: every operator with a kernel for mtia, from yaml/native_functions.yaml.

Flow: overlay -> merge -> rows; PyTorch's own test samples, run on the device, -> the dtypes column (operator_dtypes).
`make docs` runs this with the built package.
"""

from __future__ import annotations

import pathlib
import sys
from collections.abc import Mapping, Set
from dataclasses import dataclass

from torchgen.gen import get_grouped_native_functions
from torchgen.model import BackendIndex, DispatchKey, NativeFunction, NativeFunctionsGroup

from tools.codegen.generate import OVERLAY, ROOT
from tools.codegen.merge import MergedOperators, merge

DOCUMENT = ROOT / "docs" / "operators.md"

HEADING = """\
# Operators

The operators with a kernel for `mtia`, with PyTorch 2.13. `make docs` writes this page from
[yaml/native_functions.yaml](../yaml/native_functions.yaml). Operators that are composed of others need no entry; all
others fall back to the CPU's kernels ([fallback.md](fallback.md)).

| kind | kernel |
|---|---|
| metadata | ATen's own function, which accesses no device memory |
| stub | ATen's own function, over a loop that runs as a work item |
| CPU kernel | generated: one of ATen's CPU kernels as a work item |
| CPU kernel in float32 | generated: the same, on float32 copies of 16-bit operands |
| list | generated: ATen's slow path for a list of tensors, as one work item if the lists are alike |
| hand-written | a function in `csrc/aten` |

An entry stands for all forms of its operator (functional, in place, `out=`) that PyTorch derives from it. Dtypes: those
of the first tensor argument in the OpInfo samples that ran on the device. Empty: no sample reaches the operator. A call
that always waits for the device cannot be captured in a graph.

These kernels differ from the CPU device's:

- float32 matmuls (`mm`, `addmm`, and `linear` and `matmul` of matrices): on non-Intel processors with AVX-512, those
  that are neither small nor narrow run in oneDNN. MKL, which the CPU device uses, does without AVX-512 there. One row
  times a matrix of up to 512K values with contiguous columns, such as the transposed weight of `linear`, runs in a loop
  of this package there. `torch.backends.mkldnn.flags(enabled=False)` around the call selects MKL. The last bits of both
  differ from the CPU device's, and on Intel processors so may those of small matmuls, for which MKL has one thread here
  and two on the CPU device.
- float16 and bfloat16 matmuls (`mm`, `addmm`, `bmm`, `baddbmm`) are computed in float32 and rounded once if oneDNN has
  no instructions for the dtype: float16 without AVX512-FP16, bfloat16 without AVX-512.
- Other sums of many float16 or bfloat16 values accumulate in float32 and are rounded once; many of the CPU device's
  kernels accumulate in 16 bits ([accuracy.md](accuracy.md)).
- `histc` counts integers, as on CUDA. `_int_mm` is exact on processors without VNNI, where oneDNN saturates sums to 16
  bits.
"""

# Abbreviations for sets of dtypes, widest first.
DTYPE_CLASSES: tuple[tuple[str, frozenset[str]], ...] = (
    ("floating", frozenset({"float16", "bfloat16", "float32", "float64"})),
    ("complex", frozenset({"complex64", "complex128"})),
    ("integer", frozenset({"uint8", "int8", "int16", "int32", "int64"})),
    ("bool", frozenset({"bool"})),
)
DTYPES: frozenset[str] = frozenset().union(*(dtypes for _, dtypes in DTYPE_CLASSES))


@dataclass(frozen=True)
class OperatorRow:
    """One line of the table."""

    name: str
    kind: str
    kernel: str
    waits: str
    capturable: bool
    overloads: frozenset[str]
    """The operators that are registered for MTIA because of the entry."""


def operator_rows(overlay: pathlib.Path = OVERLAY) -> list[OperatorRow]:
    """The rows of the overlay, sorted by name."""
    merged = merge(overlay)
    index = merged.parsed.backend_indices[DispatchKey.MTIA]
    rows = []
    for group in get_grouped_native_functions(merged.parsed.native_functions):
        functions = list(group.functions()) if isinstance(group, NativeFunctionsGroup) else [group]
        for function in functions:
            name = str(function.func.name)
            if name in merged.entries:
                rows.append(_row(name, function, group, merged, index))
    return sorted(rows, key=lambda row: row.name.lstrip("_"))


def _row(
    name: str,
    function: NativeFunction,
    group: NativeFunction | NativeFunctionsGroup,
    merged: MergedOperators,
    index: BackendIndex,
) -> OperatorRow:
    entry = merged.entries[name]
    overloads = {name}
    if isinstance(group, NativeFunctionsGroup) and group.structured:
        overloads = {str(f.func.name) for f in group.functions() if f.structured or f.structured_delegate is not None}
        overloads |= {str(f.func.name) for f in group.functions() if index.has_kernel(f)}
    return OperatorRow(name, _kind(function, merged), entry.kernel, entry.waits, entry.capturable, frozenset(overloads))


def _kind(function: NativeFunction, merged: MergedOperators) -> str:
    name = str(function.func.name)
    if name in merged.cpu_kernels:
        first = function.func.arguments.flat_all[0]
        kernel = merged.cpu_kernels[name]
        if kernel.is_composite and first.type.is_list_like():
            return "list"
        return "CPU kernel in float32" if kernel.in_float32 and not kernel.is_own else "CPU kernel"
    if merged.entries[name].kernel not in merged.upstream_kernels:
        return "hand-written"
    return "metadata" if function.is_view_op or "inplace_view" in function.tags else "stub"


def describe_dtypes(dtypes: Set[str]) -> str:
    """A set of dtypes in few words."""
    if dtypes >= DTYPES:
        return "all"
    words = []
    for name, members in DTYPE_CLASSES:
        words += [name] if dtypes >= members else sorted(dtypes & members)
    return ", ".join(words)


def document(rows: list[OperatorRow], dtypes: Mapping[str, Set[str]]) -> str:
    """The text of docs/operators.md; `dtypes` has those that each overload ran with."""
    lines = [
        HEADING,
        f"{len(rows)} entries.",
        "",
        "| operator | kind | kernel | dtypes | waits | capturable |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        ran_with: set[str] = set().union(*(dtypes.get(overload, set()) for overload in row.overloads))
        capturable = "yes" if row.capturable else "no"
        cells = (f"`{row.name}`", row.kind, f"`{row.kernel}`", describe_dtypes(ran_with), row.waits, capturable)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    from tools.codegen.operator_dtypes import dtypes_by_overload

    text = document(operator_rows(), dtypes_by_overload(DTYPES))
    changed = not DOCUMENT.exists() or DOCUMENT.read_text() != text
    DOCUMENT.write_text(text)
    sys.stdout.write(f"{DOCUMENT.relative_to(ROOT)}: {'rewritten' if changed else 'up to date'}\n")
