"""Writes the kernels of overlay rows with `runs`: glue that keeps the arguments and runs one of ATen's CPU kernels.

Structured operators have their outputs made by torchgen's code; an operator in place has them; for any other one the
row names the function in csrc/aten/Shapes.h that tells what they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torchgen.api import structured
from torchgen.api.types import Binding, kernel_signature
from torchgen.context import native_function_manager
from torchgen.model import Argument, BackendIndex, ListType, NativeFunction, NativeFunctionsGroup

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
            '#include "Shapes.h"',
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
    call = f"torch_mtia::StructuredCall<at::native::structured_{kernel.runs}, {outputs}>::run(arguments...);"
    run = f"[](const auto&... arguments) {{ {call} }}"
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
    signature = kernel_signature(function, index)
    bindings = signature.arguments()
    definition = signature.defn(name=metadata.kernel)
    written = [binding.name for binding in bindings if _is_written(binding)]
    if kernel.shape is None:
        if function.func.arguments.out or any(not r.is_write for r in function.func.returns):
            raise OverlayError(
                f"{function.loc}: aten::{function.func.name} makes or resizes tensors and is not structured: its row "
                "needs `shape`, or its kernel is written in csrc/aten"
            )
        body = _launch(function, bindings, _run(bindings, [], kernel), kernel)
        if kernel.checks is not None:
            body = f"  torch_mtia::{kernel.checks}({', '.join(b.name for b in bindings)});\n{body}"
        return f"{definition} {{\n{body}\n{_return(written if function.func.returns else [])}}}\n"

    inputs = [binding for binding in bindings if not _is_written(binding)]
    shapes = f"  const auto shapes = torch_mtia::{kernel.shape}({', '.join(b.name for b in inputs)});\n"
    if written:
        prepare = "".join(f"  torch_mtia::resize_to({name}, shapes[{i}]);\n" for i, name in enumerate(written))
        body = _launch(function, bindings, _run(inputs, written, kernel), kernel)
        return f"{definition} {{\n{shapes}{prepare}{body}\n{_return(written)}}}\n"
    outputs = [f"result{i}" for i in range(len(function.func.returns))]
    prepare = "".join(f"  Tensor {name} = torch_mtia::empty_of(shapes[{i}]);\n" for i, name in enumerate(outputs))
    body = _launch(function, bindings, _run(inputs, outputs, kernel), kernel, outputs)
    results = outputs[0] if len(outputs) == 1 else f"{{{', '.join(outputs)}}}"
    return f"{definition} {{\n{shapes}{prepare}{body}\n  return {results};\n}}\n"


def _run(inputs: Sequence[Binding], outputs: Sequence[str], kernel: HostKernel) -> str:
    """The lambda that calls the CPU kernel."""
    names = [binding.name for binding in inputs]
    parameters = ", ".join(f"auto&& {name}" for name in [*names, *outputs])
    if kernel.writes_outputs:
        return f"[]({parameters}) {{ at::native::{kernel.runs}({', '.join([*names, *outputs])}); }}"
    call = f"at::native::{kernel.runs}({', '.join(names)})"
    return f"[]({parameters}) {{ torch_mtia::copy_results({call}, {', '.join(outputs)}); }}"


def _return(names: Sequence[str]) -> str:
    if not names:
        return ""
    result = names[0] if len(names) == 1 else f"std::forward_as_tuple({', '.join(names)})"
    return f"  return {result};\n"


def _launch(
    function: NativeFunction, bindings: Sequence[Binding], run: str, kernel: HostKernel, made: Sequence[str] = ()
) -> str:
    """The call of run_on_host; `made`: tensors that the kernel writes and the caller does not pass."""
    keep = [f"torch_mtia::keep{'_output' if _is_written(b) else ''}({b.name})" for b in bindings]
    keep += [f"torch_mtia::keep_output({name})" for name in made]
    device = f"{made[0]}.device()" if made else _device(bindings)
    return "\n".join(
        [
            f'  torch_mtia::run_on_host({{"aten::{function.func.name.name}", {kernel.weight}}}, {device},',
            f"                          {run},",
            f"                          {', '.join(keep)});",
        ]
    )


def _is_written(binding: Binding) -> bool:
    return isinstance(binding.argument, Argument) and binding.argument.is_write


def _device(bindings: Sequence[Binding]) -> str:
    """The device of the first tensor that is written."""
    written = next(binding for binding in bindings if _is_written(binding))
    assert isinstance(written.argument, Argument)
    if isinstance(written.argument.type, ListType):
        return f"{written.name}.front().device()"
    return f"{written.name}.device()"
