"""Generates the C functions by which packages of AOTInductor call operators: c_shim_mtia.h, and CShims_*.cpp.

They are those that Inductor takes for granted on every device, `torchgen.aoti.fallback_ops`, and one that it has a
lowering for. They call the dispatcher; what is not among them, generated code calls through libtorch's proxy executor,
by the operator's schema.
"""

from __future__ import annotations

from torchgen.aoti.fallback_ops import inductor_fallback_ops
from torchgen.gen_aoti_c_shim import gen_aoti_c_shim, get_fallback_op_name
from torchgen.model import BackendIndex, DispatchKey, NativeFunction, Variant

NUM_SOURCES = 4

_OPERATORS = inductor_fallback_ops | {"aten.mkldnn_rnn_layer.default": {}}

_CATCH = "AOTI_TORCH_CONVERT_EXCEPTION_TO_ERROR_CODE({"
_SOURCE = """\
// Generated: the operators of packages. See tools/codegen/c_shims.py.
#include <torch/csrc/inductor/aoti_torch/utils.h>

{includes}

#include "aoti/Package.h"
#include "c_shim_mtia.h"

using namespace torch::aot_inductor;
{body}
"""


def header(functions: list[NativeFunction], indices: dict[DispatchKey, BackendIndex]) -> str:
    return _generate(_of_packages(functions), indices, header=True)


def sources(functions: list[NativeFunction], indices: dict[DispatchKey, BackendIndex]) -> dict[str, str]:
    shims = _of_packages(functions)
    return {f"CShims_{part}.cpp": _source(shims[part::NUM_SOURCES], indices) for part in range(NUM_SOURCES)}


def _of_packages(functions: list[NativeFunction]) -> list[NativeFunction]:
    by_name = {get_fallback_op_name(function): function for function in functions}
    return [by_name[name] for name in sorted(by_name.keys() & _OPERATORS.keys())]


def _source(functions: list[NativeFunction], indices: dict[DispatchKey, BackendIndex]) -> str:
    includes = sorted({f"#include <ATen/ops/{function.root_name}.h>" for function in functions})
    return _SOURCE.format(
        includes="\n".join(includes), body="".join(_definition(function, indices) for function in functions)
    )


def _definition(function: NativeFunction, indices: dict[DispatchKey, BackendIndex]) -> str:
    _, _, body = _generate([function], indices, header=False).partition("using namespace torch::aot_inductor;")
    body = body.replace(_CATCH, "return torch_mtia::run_shim([&] {")
    if Variant.function in function.variants:
        return body
    # Only a method; torchgen would call a function that there is not.
    name = function.func.name
    return body.replace(f"at::{name.name}(", f"at::_ops::{name.unambiguous_name()}::call(")


def _generate(functions: list[NativeFunction], indices: dict[DispatchKey, BackendIndex], header: bool) -> str:
    text = gen_aoti_c_shim(
        functions,
        _OPERATORS,
        func_group_mapping={},
        dispatch_key=None,
        backend_indices=indices,
        header=header,
        extend_aoti_c_shim=False,
    )
    return text.replace("aoti_torch_aten_", "aoti_torch_mtia_")
