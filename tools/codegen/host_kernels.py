"""Writes the kernels of overlay rows with `runs`: glue that keeps the arguments and runs one of ATen's CPU kernels.

Structured operators have their outputs made by torchgen's code; any other operator must write only its arguments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torchgen.api import structured
from torchgen.api.types import Binding, kernel_signature
from torchgen.context import native_function_manager
from torchgen.model import Argument, BackendIndex, BaseTy, BaseType, ListType, NativeFunction, NativeFunctionsGroup

from tools.codegen.merge import HostKernel, OverlayError

Group = NativeFunction | NativeFunctionsGroup


def host_kernels_source(groups: Sequence[Group], index: BackendIndex, kernels: Mapping[str, HostKernel]) -> str:
    """The text of HostKernels.cpp. Raises `OverlayError` for an operator that needs a kernel written by hand."""
    includes: set[str] = set()
    definitions = []
    for group in groups:
        functions = list(group.functions()) if isinstance(group, NativeFunctionsGroup) else [group]
        for function in functions:
            kernel = kernels.get(str(function.func.name))
            if kernel is None:
                continue
            includes.add(f"#include <ATen/ops/{function.root_name}_native.h>")
            with native_function_manager(function):
                if isinstance(group, NativeFunctionsGroup) and group.structured:
                    definitions.append(_structured(group, index, kernel))
                else:
                    definitions.append(_unstructured(function, index, kernel))
    return "\n".join(
        [
            "// Generated from the rows with `runs` in yaml/native_functions.yaml.",
            *sorted(includes),
            "",
            '#include "HostKernel.h"',
            '#include "MTIANativeFunctions.h"',
            "",
            "namespace at::native {",
            "",
            *definitions,
            "}  // namespace at::native",
            "",
        ]
    )


def _structured(group: NativeFunctionsGroup, index: BackendIndex, kernel: HostKernel) -> str:
    metadata = index.get_kernel(group)
    assert metadata is not None
    bindings = structured.impl_arguments(group)
    outputs = len(group.out.func.arguments.out)
    run = f"torch_mtia::StructuredCall<at::native::structured_{kernel.runs}, {outputs}>::run(arguments...);"
    parameters = ", ".join(binding.defn() for binding in bindings)
    return "\n".join(
        [
            f"void structured_{metadata.kernel}::impl({parameters}) {{",
            _launch(group.functional, bindings, run, kernel),
            "}",
            "",
        ]
    )


def _unstructured(function: NativeFunction, index: BackendIndex, kernel: HostKernel) -> str:
    metadata = index.get_kernel(function)
    assert metadata is not None
    if function.func.arguments.out or any(not r.is_write for r in function.func.returns):
        raise OverlayError(
            f"{function.loc}: aten::{function.func.name} makes or resizes tensors and is not structured: `runs` cannot "
            "tell their sizes; write its kernel in csrc/aten"
        )
    signature = kernel_signature(function, index)
    results = [binding.name for binding in signature.arguments() if _is_written(binding)]
    returns = {0: "", 1: f"  return {results[0]};\n"}.get(
        len(function.func.returns), f"  return std::forward_as_tuple({', '.join(results)});\n"
    )
    run = f"at::native::{kernel.runs}(arguments...);"
    launch = _launch(function, signature.arguments(), run, kernel)
    return f"{signature.defn(name=metadata.kernel)} {{\n{launch}\n{returns}}}\n"


def _launch(function: NativeFunction, bindings: Sequence[Binding], run: str, kernel: HostKernel) -> str:
    keep = [f"torch_mtia::keep{'_output' if _is_written(b) else ''}({b.name})" for b in bindings]
    return "\n".join(
        [
            f'  torch_mtia::run_on_host({{"aten::{function.func.name.name}", {kernel.weight}}}, {_device(bindings)},',
            f"                          [](auto&&... arguments) {{ {run} }},",
            f"                          {', '.join(keep)});",
        ]
    )


def _is_written(binding: Binding) -> bool:
    return isinstance(binding.argument, Argument) and binding.argument.is_write


def _device(bindings: Sequence[Binding]) -> str:
    """The device of the first tensor that is written."""
    written = next(binding for binding in bindings if _is_written(binding))
    assert isinstance(written.argument, Argument)
    kind = written.argument.type
    if isinstance(kind, ListType):
        return f"{written.name}.front().device()"
    assert isinstance(kind, BaseType) and kind.name == BaseTy.Tensor
    return f"{written.name}.device()"
