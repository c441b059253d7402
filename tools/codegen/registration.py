"""Writes the sources that register the operators of yaml/native_functions.yaml.

torchgen writes for each operator a function that sets the device and, for structured operators, makes the outputs, and
the line that registers it. The template around them is ours; what we expect of the lines is checked.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from torchgen import dest
from torchgen.model import BackendIndex, NativeFunction, NativeFunctionsGroup
from torchgen.selective_build.selector import SelectiveBuilder
from torchgen.utils import Target

from tools.codegen.merge import Entry, OverlayError

Group = NativeFunction | NativeFunctionsGroup

SHARDS = 4  # files that are compiled side by side, each of which parses its own headers only

_TEMPLATE = """\
// Generated from yaml/native_functions.yaml: the registration of a part of its operators.
#include <ATen/DeviceGuard.h>
#include <ATen/Utils.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/op_registration/adaption.h>
#include <ATen/native/Resize.h>
#include <ATen/native/mtia/EmptyTensor.h>
#include <c10/util/ExclusivelyOwned.h>
#include <torch/library.h>
{headers}

#include "MTIANativeFunctions.h"
#include "aten/Operator.h"
#include "device/DeviceType.h"

namespace at {{
namespace {{

{helpers}

{definitions}

// The same kernels serve both device types: they register under the key of the one that is chosen.
{registrations}

}}  // namespace

namespace mtia {{
{direct}
}}  // namespace mtia
}}  // namespace at
"""


def registration_sources(
    groups: Sequence[Group], index: BackendIndex, entries: Mapping[str, Entry], is_own: Callable[[Group], bool]
) -> dict[str, str]:
    """The texts by file name. `is_own`: ATen's headers do not declare the kernels of a group."""
    return {f"Register_{shard}.cpp": _source(groups[shard::SHARDS], index, entries, is_own) for shard in range(SHARDS)}


def _source(
    groups: Sequence[Group], index: BackendIndex, entries: Mapping[str, Entry], is_own: Callable[[Group], bool]
) -> str:
    def write(target: Target, groups: Sequence[Group] = groups) -> list[str]:
        generator = dest.RegisterDispatchKey(
            index,
            target,  # type: ignore[arg-type]  # a literal type of some of its members
            SelectiveBuilder.get_nop_selector(),
            rocm=False,
            symint=True,
            class_method_name=None,
            skip_dispatcher_op_registration=False,
        )
        return [text for group in groups for text in generator(group)]

    keys = {name: key for group in groups for name, key in _keys(group, entries).items()}
    blocks: dict[str, list[str]] = {}
    for name, function in registrations(groups, index, write(Target.REGISTRATION)).items():
        # Its address, and not TORCH_FN: templates for each signature and not for each operator.
        address = f"&{function}"
        if name in entries and entries[name].takes_list_refs:
            address = f"&torch_mtia::WithListRefs<{address}>::call"
        blocks.setdefault(keys[name], []).append(f'  m.impl("{name}", {address});')
    direct = [group for group in groups if any(entry.direct for entry in _entries(group, entries))]
    headers = {f"#include <ATen/ops/{group.root_name}_native.h>" for group in groups if not is_own(group)}
    return _TEMPLATE.format(
        headers="\n".join(sorted(headers)),
        helpers="\n".join(dest.gen_registration_helpers(index)),
        definitions="\n".join(write(Target.ANONYMOUS_DEFINITION)),
        direct="\n".join(write(Target.NAMESPACED_DEFINITION, direct)),
        registrations="\n".join(
            "\n".join([f"MTIA_LIBRARY_IMPL(aten, {key}, m) {{", *lines, "}"]) for key, lines in blocks.items()
        ),
    )


def _keys(group: Group, entries: Mapping[str, Entry]) -> dict[str, str]:
    """The key of csrc/device/DeviceType.h under which each operator of a group is registered."""
    own = _entries(group, entries)
    if len({entry.needs_host_view for entry in own}) > 1:
        raise OverlayError(f"{own[0].place}: the variants of an operator agree in `host_view`")
    key = "kHostView" if own[0].needs_host_view else "kBackend"
    return {str(function.func.name): key for function in functions_of(group)}


def _entries(group: Group, entries: Mapping[str, Entry]) -> list[Entry]:
    names = [str(function.func.name) for function in functions_of(group)]
    return [entries[name] for name in names if name in entries]


def registrations(groups: Iterable[Group], index: BackendIndex, texts: Sequence[str]) -> dict[str, str]:
    """The C++ functions that torchgen's lines register, by operator.

    Raises `OverlayError` unless there is one for each operator with a kernel and none besides, all in the same words.
    """
    found: dict[str, str] = {}
    for statement in filter(None, map(str.strip, "".join(texts).split(";"))):
        match = re.fullmatch(r'm\.impl\("([\w.]+)",\s*TORCH_FN\((\w+)\)\)', statement)
        if match is None or match[1] in found:
            raise OverlayError(f"torchgen registers in words that are not expected here: {statement!r}")
        found[match[1]] = match[2]
    expected = {
        str(function.func.name)
        for group in groups
        for function in functions_of(group)
        # The variants of a structured operator have the kernel of the out= one.
        if index.has_kernel(group if group.structured else function)
    }
    if found.keys() != expected:
        raise OverlayError(f"torchgen registers, or leaves out: {sorted(found.keys() ^ expected)}")
    return found


def functions_of(group: Group) -> list[NativeFunction]:
    return list(group.functions()) if isinstance(group, NativeFunctionsGroup) else [group]
