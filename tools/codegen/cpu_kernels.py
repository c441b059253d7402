"""Writes the kernels of overlay rows with `runs`: glue that keeps the arguments and runs one of ATen's CPU kernels.

Structured operators have their outputs made by torchgen's code; an operator in place has them; for any other one the
row names the function that tells what they are (csrc/aten/Shapes.h), and this declares it. A list of results ATen makes
with one operator for each tensor, and so does the kernel.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from torchgen.api import structured
from torchgen.api.types import Binding, kernel_signature
from torchgen.context import native_function_manager
from torchgen.model import Argument, BackendIndex, ListType, NativeFunction, NativeFunctionsGroup, SchemaKind

from tools.codegen.merge import CPUKernel, OverlayError

Group = NativeFunction | NativeFunctionsGroup

SHARDS = 4  # of the kernels on tensors: files that compile in half a minute each


def cpu_kernels_sources(
    groups: Sequence[Group], index: BackendIndex, kernels: Mapping[str, CPUKernel]
) -> dict[str, str]:
    """The texts of the sources, by file name. Raises `OverlayError` for an operator whose kernel has to be written."""
    headers = ("CPUKernels.h", "CPUKernelLaunch.h", "ShapeFunctions.h")
    sources = {f"CPUKernels_{shard}.cpp": _Source(*headers) for shard in range(SHARDS)}
    on_tensors = list(sources.values())
    on_lists = sources["ListKernels.cpp"] = _Source("CPUKernelLaunch.h")
    for number, group in enumerate(groups):
        functions = list(group.functions()) if isinstance(group, NativeFunctionsGroup) else [group]
        for function in functions:
            kernel = kernels.get(str(function.func.name))
            if kernel is None:
                continue
            source = on_lists if _takes_list(function) else on_tensors[number % SHARDS]
            if kernel.in_float32 and not kernel.is_own and _takes_list(function):
                raise OverlayError(f"{kernel.place}: `in_float32` is not for operators on lists")
            with native_function_manager(function):
                if isinstance(group, NativeFunctionsGroup) and group.structured:
                    on_tensors[number % SHARDS].add(function, _structured(group, index, kernel))
                else:
                    source.add(function, _unstructured(function, index, kernel))
    return {name: source.text() for name, source in sources.items()}


def shape_functions_header(groups: Sequence[Group], index: BackendIndex, kernels: Mapping[str, CPUKernel]) -> str:
    """ShapeFunctions.h: declares the functions that rows name in `shape` and `checks`."""
    declarations = set()
    known: dict[str, bool] = {}  # by the declaration without its type: whether a kernel needs the shapes to be known
    for group in groups:
        functions = list(group.functions()) if isinstance(group, NativeFunctionsGroup) else [group]
        for function in functions:
            kernel = kernels.get(str(function.func.name))
            if kernel is None:
                continue
            with native_function_manager(function):
                if isinstance(group, NativeFunctionsGroup) and group.structured:
                    bindings: Sequence[Binding] = structured.impl_arguments(group)
                else:
                    bindings = kernel_signature(function, index).arguments()
            if kernel.checks is not None:
                declarations.add(f"void {kernel.checks}({_parameters(bindings)});")
            if kernel.shape is not None:
                inputs = _parameters([b for b in bindings if not _is_written(b)])
                declared = f"<{len(function.func.returns)}> {kernel.shape}({inputs});"
                known[declared] = known.get(declared, False) or kernel.writes_outputs
    declarations |= {f"{'KnownShapes' if always else 'Shapes'}{rest}" for rest, always in known.items()}
    return "\n".join(
        [
            "// Generated from the rows with `shape` and `checks` in yaml/native_functions.yaml.",
            "#pragma once",
            "",
            '#include "aten/Shapes.h"',
            "",
            "namespace torch_mtia {",
            "",
            *sorted(declarations),
            "",
            "}  // namespace torch_mtia",
            "",
        ]
    )


def _parameters(bindings: Sequence[Binding]) -> str:
    return ", ".join(re.sub(r"^at::Tensor &", "const at::Tensor &", b.no_default().decl()) for b in bindings)


class _Source:
    """A source file with kernels."""

    def __init__(self, *headers: str) -> None:
        self._headers = headers
        self._includes: set[str] = set()
        self._definitions: list[str] = []

    def add(self, function: NativeFunction, definition: str) -> None:
        self._includes.add(f"#include <ATen/ops/{function.root_name}_native.h>")
        self._definitions.append(definition)

    def text(self) -> str:
        return "\n".join(
            [
                "// Generated from the rows with `runs` in yaml/native_functions.yaml.",
                "#include <c10/util/Exception.h>  // c10/core/OptionalRef.h takes it for granted",
                *sorted(self._includes),
                "",
                *(f'#include "{header}"' for header in sorted([*self._headers, "MTIANativeFunctions.h"])),
                "",
                "namespace at::native {",
                "",
                *self._definitions,
                "}  // namespace at::native",
                "",
            ]
        )


def _structured(group: NativeFunctionsGroup, index: BackendIndex, kernel: CPUKernel) -> str:
    metadata = index.get_kernel(group)
    assert metadata is not None
    bindings = structured.impl_arguments(group)
    outputs = len(group.out.func.arguments.out)
    call = f"torch_mtia::StructuredCall<at::native::structured_{kernel.runs}, {outputs}>::run(arguments...);"
    if kernel.is_own:
        call = f"torch_mtia::{kernel.runs}(arguments...);"
    run = _widening(kernel, f"[](const auto&... arguments) {{ {call} }}")
    parameters = ", ".join(binding.defn() for binding in bindings)
    arguments = ", ".join(binding.name for binding in bindings)
    checks = [] if kernel.checks is None else [f"torch_mtia::{kernel.checks}({arguments});"]
    return "\n".join(
        [
            f"void structured_{metadata.kernel}::impl({parameters}) {{",
            _launch(group.functional, bindings, run, kernel, checks=checks),
            "}",
            "",
        ]
    )


def _unstructured(function: NativeFunction, index: BackendIndex, kernel: CPUKernel) -> str:
    metadata = index.get_kernel(function)
    assert metadata is not None
    signature = kernel_signature(function, index)
    bindings = signature.arguments()
    definition = signature.defn(name=metadata.kernel)
    written = [binding.name for binding in bindings if _is_written(binding)]
    if kernel.shape is not None:
        return f"{definition} {{\n{_with_shape(function, bindings, kernel)}}}\n"
    if _makes_list(function, kernel):
        forwarded = ", ".join(binding.name for binding in bindings)
        return f"{definition} {{\n  return at::native::{kernel.runs}({forwarded});\n}}\n"
    if function.func.arguments.out or any(not r.is_write for r in function.func.returns):
        raise OverlayError(
            f"{kernel.place}: aten::{function.func.name} makes or resizes tensors and is not structured: its row needs "
            "`shape`, or its kernel is written in csrc/aten"
        )
    run = _run(bindings, [], kernel)
    if _writes_list(bindings):
        checks = _list_checks(function, bindings, kernel)
        body = _launch(function, bindings, run, kernel, checks=checks, least_cost="torch_mtia::cost_of_list(self)")
        if kernel.is_composite:
            body += "\n  torch_mtia::advance_versions(self);"
    else:
        arguments = ", ".join(binding.name for binding in bindings)
        checks = [] if kernel.checks is None else [f"torch_mtia::{kernel.checks}({arguments});"]
        body = _launch(function, bindings, run, kernel, checks=checks)
    return f"{definition} {{\n{body}\n{_return(written[: len(function.func.returns)])}}}\n"


def _with_shape(function: NativeFunction, bindings: Sequence[Binding], kernel: CPUKernel) -> str:
    """The body of a kernel whose row tells the outputs' shapes: makes them, or resizes those that it is given."""
    inputs = [binding for binding in bindings if not _is_written(binding)]
    shapes = f"  const auto shapes = torch_mtia::{kernel.shape}({', '.join(b.name for b in inputs)});\n"
    written = [binding.name for binding in bindings if _is_written(binding)]
    checks = ""
    if kernel.checks is not None:
        checks = f"  torch_mtia::{kernel.checks}({', '.join(binding.name for binding in bindings)});\n"
    if not kernel.writes_outputs:
        return f"{shapes}{checks}{_making(function, inputs, written, kernel)}"
    if written:
        prepare = "".join(f"  torch_mtia::resize_to({name}, shapes[{i}]);\n" for i, name in enumerate(written))
        body = _launch(function, bindings, _run(inputs, written, kernel), kernel)
        return f"{shapes}{checks}{prepare}{body}\n{_return(written)}"
    made = [f"result{i}" for i in range(len(function.func.returns))]
    prepare = "".join(f"  Tensor {name} = torch_mtia::empty_of(shapes[{i}]);\n" for i, name in enumerate(made))
    body = _launch(function, bindings, _run(inputs, made, kernel), kernel, made=made)
    results = made[0] if len(made) == 1 else f"{{{', '.join(made)}}}"
    return f"{shapes}{checks}{prepare}{body}\n  return {results};\n"


def _making(function: NativeFunction, inputs: Sequence[Binding], written: Sequence[str], kernel: CPUKernel) -> str:
    """The call of a kernel that makes its results, in new outputs; given ones get a copy."""
    count = len(function.func.returns)
    first = next(b for b in inputs if isinstance(b.argument, Argument) and str(b.argument.type) == "Tensor")
    own = ", ".join(_own(b, kernel) for b in inputs)
    arguments = f"{_info(function, inputs, kernel)}, {first.name}.device(), shapes, run, {own}"
    call = f"  constexpr auto run = {_run(inputs, [], kernel)};\n"
    call += f"  auto results = torch_mtia::make_with_cpu_kernel<{count}>({arguments});\n"
    if written:
        copies = "".join(f"  torch_mtia::write_result(results[{i}], {name});\n" for i, name in enumerate(written))
        return f"{call}{copies}{_return(written)}"
    made = [f"std::move(results[{i}])" for i in range(count)]
    return f"{call}  return {made[0] if count == 1 else '{' + ', '.join(made) + '}'};\n"


def _list_checks(function: NativeFunction, bindings: Sequence[Binding], kernel: CPUKernel) -> list[str]:
    """What an operator on lists does before its work item: see Note [List kernels]."""
    arguments = ", ".join(binding.name for binding in bindings)
    if kernel.is_composite:
        return [
            f'if (!torch_mtia::ListArguments({arguments}).fits_one_item("aten::{function.func.name.name}")) {{',
            f"  at::native::{kernel.runs}({arguments});",
            "  return;",
            "}",
        ]
    return [
        "if (self.empty()) return;",
        f'torch_mtia::ListArguments({arguments}).check("{function.func.name.name}");',
    ]


def _run(inputs: Sequence[Binding], outputs: Sequence[str], kernel: CPUKernel) -> str:
    """The lambda that calls the CPU kernel. Without `outputs` it returns what a kernel makes."""
    names = [binding.name for binding in inputs]
    parameters = ", ".join(f"auto&& {name}" for name in [*names, *outputs])
    namespace = "torch_mtia" if kernel.is_own else "at::native"
    call = f"{namespace}::{kernel.runs}({', '.join([*names, *outputs])})"
    # Without a result InFloat32 knows that the kernel writes its outputs, which it rounds then.
    returns = "" if kernel.in_float32 and kernel.writes_outputs else "return "
    return _widening(kernel, f"[]({parameters}) {{ {returns}{call}; }}")


def _widening(kernel: CPUKernel, run: str) -> str:
    """The same lambda, on float32 copies of 16-bit operands if the row says so and the kernel is ATen's."""
    return f"torch_mtia::in_float32({run})" if kernel.in_float32 and not kernel.is_own else run


def _return(names: Sequence[str]) -> str:
    if not names:
        return ""
    result = names[0] if len(names) == 1 else f"std::forward_as_tuple({', '.join(names)})"
    return f"  return {result};\n"


def _own(binding: Binding, kernel: CPUKernel, how: str = "own") -> str:
    """How a work item keeps an argument."""
    old_bytes = kernel.old_bytes.get(binding.name)
    return f"torch_mtia::{how}({binding.name}{', ' + old_bytes.cpp() if old_bytes else ''})"


def _launch(
    function: NativeFunction,
    bindings: Sequence[Binding],
    run: str,
    kernel: CPUKernel,
    *,
    checks: Sequence[str] = (),
    made: Sequence[str] = (),
    least_cost: str = "0",
) -> str:
    """The call of run_cpu_kernel, after `checks`; `made`: what the kernel writes and the caller does not pass."""
    changes = function.func.kind() in (SchemaKind.inplace, SchemaKind.mutable)
    own_written = "own_in_place" if changes else "own_output"
    own = [_own(b, kernel, own_written if _is_written(b) else "own") for b in bindings]
    own += [f"torch_mtia::own_output({name})" for name in made]
    info = _info(function, bindings, kernel, least_cost)
    device = f"{made[0]}.device()" if made else _device(bindings)
    lines = [
        f"constexpr auto run = {run};",
        *checks,
        f"torch_mtia::run_cpu_kernel({info}, {device}, run, {', '.join(own)});",
    ]
    return "\n".join(f"  {line}" for line in lines)


def _info(function: NativeFunction, bindings: Sequence[Binding], kernel: CPUKernel, least_cost: str = "0") -> str:
    waits = ", check_errors" if any(b.name == "check_errors" for b in bindings) else ""
    op = f'{{"aten::{function.func.name.name}", "{kernel.runs}"}}'
    if kernel.product:
        least_cost = f"torch_mtia::product_cost({', '.join(kernel.product)})"
    return f"{{{op}, {kernel.weight}, {least_cost}{waits}}}"


def _makes_list(function: NativeFunction, kernel: CPUKernel) -> bool:
    returns_list = any(r.type.is_list_like() is not None for r in function.func.returns)
    return kernel.is_composite and returns_list and not function.func.arguments.out


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
    if isinstance(written.argument.type, ListType):
        return f"{written.name}.front().device()"
    return f"{written.name}.device()"
