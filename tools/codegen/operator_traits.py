"""Writes what the rows of yaml/native_functions.yaml say of operators for the mechanisms that they share."""

from __future__ import annotations

from collections.abc import Mapping

from tools.codegen.merge import TRAITS, Traits


def traits_header(operators: Mapping[str, Traits]) -> str:
    """OperatorTraits.h, whose table csrc/aten/Operator.h searches; `operators` by name without an overload."""
    rows = {f"aten::{name}": operator for name, operator in operators.items()}
    fields = "\n".join(f"  bool {name} = false;  // {words}" for name, words in TRAITS.items())
    table = "\n".join(f'    {{"{name}", {{{_designated(rows[name])}}}}},' for name in sorted(rows))
    return f"""\
// Generated from yaml/native_functions.yaml: what its rows say of an operator beside its kernel.
#pragma once

#include <string_view>

namespace torch_mtia {{

struct OperatorTraits {{
{fields}
  std::string_view in_part = {{}};  // the argument that the fall back reads in part; empty: none
}};

struct OperatorRow {{
  std::string_view name;
  OperatorTraits traits;
}};

// The operators with any trait, sorted by name.
inline constexpr OperatorRow kOperatorRows[] = {{
{table}
}};

}}  // namespace torch_mtia
"""


def _designated(operator: Traits) -> str:
    """In the order of the declaration, as C++ wants it."""
    given = [f".{name} = true" for name in TRAITS if name in operator.names]
    if operator.in_part:
        given.append(f'.in_part = "{operator.in_part}"')
    return ", ".join(given)


def no_host_view_source(functions: Mapping[str, str]) -> str:
    """The registration of what serves with a driver without a host view, by operator name."""
    boxed = "torch::CppFunction::makeFromBoxedFunction"
    lines = "\n".join(
        f'  m.impl("{name}", {boxed}<&torch_mtia::{function}>());' for name, function in sorted(functions.items())
    )
    return f"""\
// Generated from the rows with `without_host_view` in yaml/native_functions.yaml.
#include <torch/library.h>

#include "aten/Fallback.h"
#include "device/DeviceType.h"

MTIA_LIBRARY_IMPL(aten, kNoHostView, m) {{
{lines}
}}
"""
