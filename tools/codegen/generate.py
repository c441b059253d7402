"""Generates the operator registration from yaml/native_functions.yaml.

Flow: overlay + packaged native_functions.yaml -> merge -> torchgen -> RegisterMTIA.cpp, MTIANativeFunctions.h
                                                        -> host_kernels -> HostKernels_*.cpp, ListKernels.cpp
and csrc/runtime/mtia_runtime.h -> kernel_abi -> KernelABI.cpp

RegisterMTIA.cpp is what torchgen writes for an in-tree backend. MTIANativeFunctions.h declares the kernels that are
ours, in the form in which ATen's per-operator `*_native.h` headers declare ATen's. HostKernels_*.cpp and
ListKernels.cpp define those that run one of ATen's CPU kernels.
"""

from __future__ import annotations

import dataclasses
import pathlib
import re
import sys

from torchgen import dest
from torchgen.gen import get_grouped_native_functions, get_native_function_definitions
from torchgen.model import BackendIndex, DispatchKey, NativeFunction, NativeFunctionsGroup
from torchgen.selective_build.selector import SelectiveBuilder
from torchgen.utils import FileManager

from tools.codegen import kernel_abi
from tools.codegen.host_kernels import host_kernels_sources
from tools.codegen.merge import PACKAGED_TEMPLATES, MergedOperators, OverlayError, merge

ROOT = pathlib.Path(__file__).resolve().parents[2]
OVERLAY = ROOT / "yaml" / "native_functions.yaml"
KERNEL_SOURCES = ROOT / "csrc" / "aten"

Group = NativeFunction | NativeFunctionsGroup


def generate(output_dir: pathlib.Path, overlay: pathlib.Path = OVERLAY) -> list[pathlib.Path]:
    """Writes the generated sources and returns the ones to compile. Files whose content is unchanged are not touched.

    Raises `tools.codegen.merge.OverlayError` for a wrong entry.
    """
    merged = merge(overlay)
    check_kernels_exist(merged)
    # torchgen leaves device guards and same-device checks out for MTIA; `device_guard` makes it emit CUDA's.
    index = dataclasses.replace(merged.parsed.backend_indices[DispatchKey.MTIA], device_guard=True)
    groups = [g for g in get_grouped_native_functions(merged.parsed.native_functions) if _is_registered(g, index)]
    own = [g for g in groups if not _kernels(g, index) <= merged.upstream_kernels]

    sources = {
        "RegisterMTIA.cpp": _register_source(groups, own, index, merged),
        **host_kernels_sources(own, index, merged.host_kernels),
        "KernelABI.cpp": kernel_abi.assertions(kernel_abi.HEADER.read_text()),
    }
    for name, text in {"MTIANativeFunctions.h": _native_functions_header(own, index), **sources}.items():
        _write_if_changed(output_dir / name, text)
    return [output_dir / name for name in sources]


def check_kernels_exist(merged: MergedOperators) -> None:
    """Raises `OverlayError` for a kernel that is not ATen's, not generated, and not mentioned in csrc/aten."""
    text = "".join(path.read_text() for path in sorted(KERNEL_SOURCES.glob("*.cpp")))
    words = {word.removeprefix("structured_") for word in re.findall(r"\w+", text)}
    for name, entry in merged.entries.items():
        if name not in merged.host_kernels and entry.kernel not in merged.upstream_kernels | words:
            raise OverlayError(
                f"{entry.place}: nobody defines the kernel {entry.kernel} of aten::{name}: it is not one of ATen's, "
                "and csrc/aten does not mention it"
            )


def _functions(group: Group) -> list[NativeFunction]:
    return list(group.functions()) if isinstance(group, NativeFunctionsGroup) else [group]


def _is_registered(group: Group, index: BackendIndex) -> bool:
    return any(index.has_kernel(f) for f in _functions(group))


def _kernels(group: Group, index: BackendIndex) -> set[str]:
    """The kernels that a group names under the key."""
    return {metadata.kernel for f in _functions(group) if (metadata := index.get_kernel(f)) is not None}


def _native_functions_header(own: list[Group], index: BackendIndex) -> str:
    includes = sorted({f"#include <ATen/ops/{g.root_name}_meta.h>" for g in own if g.structured})
    declarations = [line for g in own for line in dest.compute_native_function_declaration(g, index)]
    return "\n".join(
        [
            "// Generated from yaml/native_functions.yaml: the kernels that torch_mtia implements.",
            "#pragma once",
            "",
            "#include <ATen/core/Tensor.h>",
            "#include <c10/core/Scalar.h>",
            "#include <c10/core/Stream.h>",
            *includes,
            "",
            "namespace at::native {",
            *declarations,
            "}  // namespace at::native",
            "",
        ]
    )


def _door_key(group: Group, merged: MergedOperators) -> str:
    """The key of csrc/device/Door.h under which the kernels of a group are registered."""
    entries = [entry for f in _functions(group) if (entry := merged.entries.get(str(f.func.name))) is not None]
    if len({entry.needs_host_view for entry in entries}) > 1:
        raise OverlayError(f"{entries[0].place}: the variants of an operator agree in `host_view`")
    return "kHostView" if entries[0].needs_host_view else "kBackend"


def _register_source(groups: list[Group], own: list[Group], index: BackendIndex, merged: MergedOperators) -> str:
    own_names = {id(g) for g in own}
    files = FileManager(install_dir="", template_dir=str(PACKAGED_TEMPLATES), dry_run=True)
    # The same kernels serve both doors: they register under the key of the one that opens.
    definitions = [
        line.replace("TORCH_LIBRARY_IMPL(aten, MTIA, m)", f"MTIA_LIBRARY_IMPL(aten, {_door_key(group, merged)}, m)")
        for group in groups
        for line in get_native_function_definitions(
            fm=files,
            grouped_native_functions=[group],
            dispatch_key=DispatchKey.MTIA,
            backend_idx=index,
            selector=SelectiveBuilder.get_nop_selector(),
            rocm=False,
            symint=True,
            skip_dispatcher_op_registration=False,
            gen_dispatch_helpers=True,
        )
    ]
    shared = sorted({f"#include <ATen/ops/{g.root_name}_native.h>" for g in groups if id(g) not in own_names})
    text: str = files.substitute_with_template(
        "RegisterDispatchKey.cpp",
        lambda: {
            "generated_comment": "Generated by tools/codegen from yaml/native_functions.yaml.",
            "extra_cuda_headers": "",
            "external_backend_headers": '#include "MTIANativeFunctions.h"\n#include "device/Door.h"',
            "dispatch_headers": dest.gen_registration_headers(index, per_operator_headers=True, rocm=False),
            "ops_headers": shared,
            "dispatch_helpers": dest.gen_registration_helpers(index),
            "dispatch_definitions": definitions,
        },
    )
    return text


def _write_if_changed(path: pathlib.Path, text: str) -> None:
    if path.exists() and path.read_text() == text:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


if __name__ == "__main__":
    print(*generate(pathlib.Path(sys.argv[1])), sep="\n")
