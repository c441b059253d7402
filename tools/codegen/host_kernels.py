"""Writes the kernels of overlay rows with `runs`: glue that keeps the arguments and runs one of ATen's CPU kernels.

Structured operators have their outputs made by torchgen's code; any other operator must write only its arguments. The
exception is a list of results: ATen makes it with one operator for each tensor, and so does the kernel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torchgen.api import structured
from torchgen.api.types import Binding, kernel_signature
from torchgen.context import native_function_manager
from torchgen.model import Argument, BackendIndex, BaseTy, BaseType, ListType, NativeFunction, NativeFunctionsGroup

from tools.codegen.merge import HostKernel, OverlayError

Group = NativeFunction | NativeFunctionsGroup


def host_kernels_sources(
    groups: Sequence[Group], index: BackendIndex, kernels: Mapping[str, HostKernel]
) -> dict[str, str]:
    """The texts of the sources, by file name. Raises `OverlayError` for an operator whose kernel has to be written."""
    single, lists = _Source("HostKernel.h"), _Source("ListKernel.h")
    for group in groups:
        functions = list(group.functions()) if isinstance(group, NativeFunctionsGroup) else [group]
        for function in functions:
            kernel = kernels.get(str(function.func.name))
            if kernel is None:
                continue
            with native_function_manager(function):
                if isinstance(group, NativeFunctionsGroup) and group.structured:
                    single.add(function, _structured(group, index, kernel))
                else:
                    source = lists if _takes_list(function) else single
                    source.add(function, _unstructured(function, index, kernel))
    return {"HostKernels.cpp": single.text(), "ListKernels.cpp": lists.text()}


class _Source:
    """A source file with kernels."""

    def __init__(self, header: str) -> None:
        self._header = header
        self._includes: set[str] = set()
        self._definitions: list[str] = []

    def add(self, function: NativeFunction, definition: str) -> None:
        self._includes.add(f"#include <ATen/ops/{function.root_name}_native.h>")
        self._definitions.append(definition)

    def text(self) -> str:
        return "\n".join(
            [
                "// Generated from the rows with `runs` in yaml/native_functions.yaml.",
                *sorted(self._includes),
                "",
                f'#include "{self._header}"',
                '#include "MTIANativeFunctions.h"',
                "",
                "namespace at::native {",
                "",
                *self._definitions,
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
    arguments = function.func.arguments
    returns_list = any(r.type.is_list_like() is not None for r in function.func.returns)
    if kernel.is_composite and returns_list and not arguments.out:
        signature = kernel_signature(function, index)
        forwarded = ", ".join(binding.name for binding in signature.arguments())
        return f"{signature.defn(name=metadata.kernel)} {{\n  return at::native::{kernel.runs}({forwarded});\n}}\n"
    if arguments.out or any(not r.is_write for r in function.func.returns):
        raise OverlayError(
            f"{kernel.place}: aten::{function.func.name} makes or resizes tensors and is not structured: `runs` cannot "
            "tell their sizes; write its kernel in csrc/aten"
        )
    signature = kernel_signature(function, index)
    results = [binding.name for binding in signature.arguments() if _is_written(binding)]
    returns = {0: "", 1: f"  return {results[0]};\n"}.get(
        len(function.func.returns), f"  return std::forward_as_tuple({', '.join(results)});\n"
    )
    run = f"at::native::{kernel.runs}(arguments...);"
    bindings = signature.arguments()
    if _writes_list(bindings):
        checks = _list_checks(function, bindings, kernel)
        launch = _launch(function, bindings, run, kernel, checks, "torch_mtia::cost_of_list(self)")
        if kernel.is_composite:
            launch += "\n  torch_mtia::advance_versions(self);"
    else:
        launch = _launch(function, bindings, run, kernel)
    return f"{signature.defn(name=metadata.kernel)} {{\n{launch}\n{returns}}}\n"


def _list_checks(function: NativeFunction, bindings: Sequence[Binding], kernel: HostKernel) -> list[str]:
    """What an operator on lists does before its work item: see Note [List kernels]."""
    arguments = ", ".join(binding.name for binding in bindings)
    if kernel.is_composite:
        return [
            f"if (!torch_mtia::ListArguments({arguments}).fits_one_item()) {{",
            f"  at::native::{kernel.runs}({arguments});",
            "  return;",
            "}",
            "static torch_mtia::ProbedDtypes probed;",
            f"probed.probe(run, {arguments});",
        ]
    return [
        "if (self.empty()) return;",
        f'torch_mtia::ListArguments({arguments}).check("{function.func.name.name}");',
        f"torch_mtia::probe(run, {arguments});",
    ]


def _launch(
    function: NativeFunction,
    bindings: Sequence[Binding],
    run: str,
    kernel: HostKernel,
    checks: Sequence[str] = (),
    least_cost: str = "0",
) -> str:
    keep = [f"torch_mtia::keep{'_output' if _is_written(b) else ''}({b.name})" for b in bindings]
    info = f'{{"aten::{function.func.name.name}", {kernel.weight}, {least_cost}}}'
    lines = [
        f"constexpr auto run = [](auto&&... arguments) {{ {run} }};",
        *checks,
        f"torch_mtia::run_on_host({info}, {_device(bindings)}, run, {', '.join(keep)});",
    ]
    return "\n".join(f"  {line}" for line in lines)


def _takes_list(function: NativeFunction) -> bool:
    """Whether it is an operator on lists, as `_foreach_add_` is: its first argument is a list of tensors."""
    first = function.func.arguments.flat_all[0]
    return isinstance(first.type, ListType) and first.type.is_tensor_like()


def _writes_list(bindings: Sequence[Binding]) -> bool:
    return any(
        _is_written(b) and isinstance(b.argument, Argument) and isinstance(b.argument.type, ListType) for b in bindings
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
    assert isinstance(kind, BaseType)
    assert kind.name == BaseTy.Tensor
    return f"{written.name}.device()"
