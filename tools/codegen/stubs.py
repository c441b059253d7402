"""Writes the registration of the dispatch stubs that rows of yaml/native_functions.yaml name in `stub`."""

from __future__ import annotations

from collections.abc import Iterable

from tools.codegen.merge import CASTS, Stub

# Those of ATen that declare dispatch stubs of loops over a TensorIterator.
_HEADERS = [
    "Activation",
    "BinaryOps",
    "Fill",
    "IndexKernel",
    "Lerp",
    "LinearAlgebra",
    "PointwiseOps",
    "Pow",
    "RangeFactories",
    "TensorCompare",
    "TensorFactories",
    "UnaryOps",
]


def stubs_source(stubs: Iterable[Stub]) -> str:
    """PointwiseStubs.cpp."""
    includes = "\n".join(f"#include <ATen/native/{header}.h>" for header in _HEADERS)
    lines = "\n".join(_registration(stub) for stub in stubs)
    return f"""\
// Generated from the rows with `stub` in yaml/native_functions.yaml.
{includes}

#include "Pointwise.h"
#include "device/DeviceType.h"

namespace at::native {{

{lines}

}}  // namespace at::native
"""


def _registration(stub: Stub) -> str:
    own = "" if stub.loop is None else f", &torch_mtia::{stub.loop}"
    operator = f'{{"aten::{stub.operator}", "{stub.name}"}}'
    casts = f"torch_mtia::Casts::{CASTS[stub.casts]}"
    old_bytes = ""
    if stub.old_bytes:
        asked = next((each.condition for each in stub.old_bytes if each.condition), "")
        condition = f" {asked}, const auto&" if asked else ""
        inputs = ", ".join(each.cpp() for each in stub.old_bytes)
        old_bytes = f", [](const auto&{condition}...) {{ return torch_mtia::InputBytes{{{inputs}}}; }}"
    made = f"torch_mtia::OnDevice<{stub.name}{own}>::make({operator}, {casts}{old_bytes})"
    return f"REGISTER_DEVICE_DISPATCH({stub.name}, {made})"
