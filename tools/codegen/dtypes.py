"""The dtypes that ATen's CPU kernels are known to take: yaml/dtypes.yaml, and the table that the build makes of it.

`make dtypes` measures: it runs the samples of PyTorch's own tests on the device, where a kernel is asked about all
dtypes that are not in the table yet, and adds what it takes. See Note [Dtypes] in csrc/aten/Dtypes.h.

A signature is the dtypes of the tensors of a call in order, as in "Float Long Float"; "-" is a tensor that is not
given, "+Float" one that stands in a list behind another of a different dtype. A line of the file stands for several
signatures: T is each of the dtypes that it lists.
"""

from __future__ import annotations

import pathlib
from collections import defaultdict
from collections.abc import Iterable, Mapping

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
TABLE = ROOT / "yaml" / "dtypes.yaml"

Signatures = Mapping[str, Iterable[str]]
"""By kernel."""

USUAL = [
    *("Float", "Double", "BFloat16", "Half", "Long", "Int", "Bool", "Byte", "Char", "Short"),
    *("ComplexFloat", "ComplexDouble", "ComplexHalf"),
]
"""The dtypes that a call is looked for with first."""

_HEADING = """\
# Written by `make dtypes`: the dtypes with which ATen's CPU kernels are known to work. tools/codegen/dtypes.py says how
# to read it. A kernel that is missing here, or lacks a line, is asked at every call: right, and slower.
"""


def load(path: pathlib.Path = TABLE) -> dict[str, set[str]]:
    """The signatures in the file."""
    table: dict[str, dict[str, str]] = yaml.safe_load(path.read_text()) or {}
    return {
        kernel: {_with(pattern, dtype) for pattern, dtypes in patterns.items() for dtype in dtypes.split()}
        for kernel, patterns in table.items()
    }


def save(signatures: Signatures, path: pathlib.Path = TABLE) -> None:
    """Writes the file, with as few lines as possible."""
    lines = [_HEADING]
    for kernel in sorted(signatures):
        lines.append(f'"{kernel}":')
        patterns = _patterns(set(signatures[kernel]))
        lines += [f'  "{pattern}": {" ".join(sorted(patterns[pattern], key=_rank))}' for pattern in sorted(patterns)]
    path.write_text("\n".join(lines) + "\n")


def _with(pattern: str, dtype: str) -> str:
    return " ".join(word.replace("T", dtype) if word.lstrip("+") == "T" else word for word in pattern.split())


def _patterns(signatures: set[str]) -> dict[str, set[str]]:
    """T is the dtype in one place of a signature, and where the same is: in the place that gives fewest lines."""
    longest = max(len(signature.split()) for signature in signatures)

    def patterns(place: int) -> dict[str, set[str]]:
        result = defaultdict(set)
        for signature in signatures:
            words = signature.split()
            dtype = words[min(place, len(words) - 1)].lstrip("+")
            result[" ".join(word.replace(dtype, "T") if word.lstrip("+") == dtype else word for word in words)].add(
                dtype
            )
        return result

    return min((patterns(place) for place in range(longest)), key=len)


def _rank(dtype: str) -> tuple[int, str]:
    return (USUAL.index(dtype) if dtype in USUAL else len(USUAL), dtype)


def header(signatures: Signatures) -> str:
    """OperatorDtypes.h."""
    rows, first = [], 0
    for kernel in sorted(signatures):
        count = len(set(signatures[kernel]))
        rows.append(f'    {{"{kernel}", {first}, {count}}},')
        first += count
    return "\n".join(
        [
            "// Generated from yaml/dtypes.yaml: where the table of OperatorDtypes.cpp has the dtypes of a CPU kernel.",
            "#pragma once",
            "",
            "#include <string_view>",
            "",
            '#include "aten/Dtypes.h"',
            "",
            "namespace torch_mtia {",
            "",
            "struct DtypeRow {",
            "  std::string_view name;",
            "  uint16_t first;",
            "  uint16_t count;",
            "};",
            "",
            "// Sorted by name.",
            "inline constexpr DtypeRow kDtypeRows[] = {",
            *rows,
            *(['    {"", 0, 0},'] if not rows else []),
            "};",
            "",
            f"extern const uint64_t kDtypeSignatures[{first + 1}];",
            "",
            "}  // namespace torch_mtia",
            "",
        ]
    )


def source(signatures: Signatures) -> str:
    """OperatorDtypes.cpp."""
    rows = []
    for kernel in sorted(signatures):
        rows.append(f"    // {kernel}")
        ranked = sorted(set(signatures[kernel]), key=lambda text: [_rank(word.lstrip("+")) for word in text.split()])
        rows += [f"    signature({{{', '.join(map(_symbol, text.split()))}}})," for text in ranked]
    return "\n".join(
        [
            "// Generated from yaml/dtypes.yaml: the dtypes that CPU kernels take.",
            "#include <initializer_list>",
            "",
            '#include "OperatorDtypes.h"',
            "",
            "namespace torch_mtia {",
            "namespace {",
            "",
            "using enum at::ScalarType;",
            "",
            "struct Symbol {",
            "  constexpr Symbol(at::ScalarType dtype, bool follows_in_list = false)",
            "      : value(dtype_symbol(dtype, follows_in_list)) {}",
            "  uint64_t value;",
            "};",
            "",
            "consteval uint64_t signature(std::initializer_list<Symbol> symbols) {",
            "  DtypeSignature result;",
            "  for (const Symbol& symbol : symbols) result.add(symbol.value);",
            "  return result.code();",
            "}",
            "",
            "}  // namespace",
            "",
            "const uint64_t kDtypeSignatures[] = {",
            *rows,
            "    0,  // for an empty table",
            "};",
            "",
            "}  // namespace torch_mtia",
            "",
        ]
    )


def _symbol(word: str) -> str:
    dtype = "Undefined" if word.lstrip("+") == "-" else word.lstrip("+")
    return f"{{{dtype}, true}}" if word.startswith("+") else dtype
