"""Generates the operator registration from yaml/native_functions.yaml.

Flow: overlay + packaged native_functions.yaml -> merge -> registration, with torchgen -> Register_*.cpp
                                                        -> torchgen -> MTIANativeFunctions.h
                                                        -> cpu_kernels -> CPUKernels_*.cpp, ListKernels.cpp
                                                        -> stubs -> PointwiseStubs.cpp
                                                        -> operator_traits -> OperatorTraits.h, RegisterNoHostView.cpp
                                           -> torchgen -> c_shims -> c_shim_mtia.h, CShims_*.cpp
yaml/dtypes.yaml -> dtypes -> OperatorDtypes.h, OperatorDtypes.cpp
and csrc/runtime/mtia_runtime.h -> kernel_abi -> KernelABI.cpp

MTIANativeFunctions.h declares the kernels that are ours, in the form in which ATen's per-operator `*_native.h` headers
declare ATen's. CPUKernels_*.cpp and ListKernels.cpp define those that run one of ATen's CPU kernels. OperatorTraits.h
has what the rows say of operators for the mechanisms that they share.
"""

from __future__ import annotations

import dataclasses
import pathlib
import sys

from torchgen import dest
from torchgen.gen import get_grouped_native_functions
from torchgen.model import BackendIndex, DispatchKey

from tools.codegen import c_shims, dtypes, kernel_abi
from tools.codegen.cpu_kernels import cpu_kernels_sources, shape_functions_header
from tools.codegen.merge import merge
from tools.codegen.operator_traits import no_host_view_source, traits_header
from tools.codegen.registration import Group, functions_of, registration_sources
from tools.codegen.stubs import stubs_source
from tools.codegen.upstream import Upstream

ROOT = pathlib.Path(__file__).resolve().parents[2]
OVERLAY = ROOT / "yaml" / "native_functions.yaml"


def generate(
    output_dir: pathlib.Path, overlay: pathlib.Path = OVERLAY, version: Upstream | None = None
) -> list[pathlib.Path]:
    """Writes the generated sources and returns the ones to compile. Files whose content is unchanged are not touched.

    They are for the installed PyTorch if no version is given.

    Raises `tools.codegen.merge.OverlayError` for a wrong entry.
    """
    merged = merge(overlay, version)
    # torchgen leaves device guards and same-device checks out for MTIA; `device_guard` makes it emit CUDA's.
    index = dataclasses.replace(merged.parsed.backend_indices[DispatchKey.MTIA], device_guard=True)
    groups = [g for g in get_grouped_native_functions(merged.parsed.native_functions) if _is_registered(g, index)]

    def is_own(group: Group) -> bool:
        return not _kernels(group, index) <= merged.upstream_kernels

    own = [group for group in groups if is_own(group)]

    known = dtypes.load()
    sources = {
        **registration_sources(groups, index, merged.entries, is_own),
        **cpu_kernels_sources(own, index, merged.cpu_kernels),
        "PointwiseStubs.cpp": stubs_source(merged.stubs),
        "RegisterNoHostView.cpp": no_host_view_source(merged.without_host_view),
        "OperatorDtypes.cpp": dtypes.source(known),
        **c_shims.sources(merged.parsed.native_functions, merged.parsed.backend_indices),
        "KernelABI.cpp": kernel_abi.assertions(kernel_abi.HEADER.read_text()),
    }
    headers = {
        "MTIANativeFunctions.h": _native_functions_header(own, index),
        "c_shim_mtia.h": c_shims.header(merged.parsed.native_functions, merged.parsed.backend_indices),
        "OperatorTraits.h": traits_header(merged.traits),
        "OperatorDtypes.h": dtypes.header(known),
        "ShapeFunctions.h": shape_functions_header(own, index, merged.cpu_kernels),
    }
    for name, text in {**headers, **sources}.items():
        _write_if_changed(output_dir / name, text)
    return [output_dir / name for name in sources]


def _is_registered(group: Group, index: BackendIndex) -> bool:
    return any(index.has_kernel(f) for f in functions_of(group))


def _kernels(group: Group, index: BackendIndex) -> set[str]:
    """The kernels that a group names under the key."""
    return {metadata.kernel for f in functions_of(group) if (metadata := index.get_kernel(f)) is not None}


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


def _write_if_changed(path: pathlib.Path, text: str) -> None:
    if path.exists() and path.read_text() == text:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


if __name__ == "__main__":
    print(*generate(pathlib.Path(sys.argv[1])), sep="\n")
