"""Writes the C++ code that launches kernels: of AOTInductor's packages, and with the option cpp_wrapper."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch._export.serde.schema import ArgumentKind, NamedArgument
from torch._export.serde.serialize import GraphModuleSerializer
from torch._inductor.codecache import CudaKernelParamCache
from torch._inductor.codegen.cpp_wrapper_cpu import CppWrapperCpu
from torch._inductor.codegen.cpp_wrapper_gpu import CppWrapperGpu, DeferredTritonCallWrapper
from torch._inductor.virtualized import V

from torch_mtia import _C, __version__
from torch_mtia.backend import device_type
from torch_mtia.inductor import guardrails

SHIMS = "mtia"
"""The device in the names of C functions and headers, whatever it is called in Python."""
_PACKAGE_INFO = """
extern "C" __attribute__((visibility("default"))) const torch_mtia_package_info torch_mtia_package{{
    TORCH_MTIA_PACKAGE_VERSION, "{torch_mtia}", "{torch}", "{driver}"}};
"""


class MTIACppWrapper(guardrails.ChecksKernels, CppWrapperGpu):
    """Upstream's for CUDA, in the device's terms."""

    @staticmethod
    def create(*_args: Any, **_options: Any) -> MTIACppWrapper:
        return MTIACppWrapper()

    @staticmethod
    def get_device_include_path_jit(device: str) -> str:
        return str(CppWrapperCpu.get_device_include_path_jit(_in_names(device)))

    @staticmethod
    def get_device_include_path_aot(device: str) -> str:
        return str(CppWrapperCpu.get_device_include_path_aot(_in_names(device)))

    @staticmethod
    def get_c_shim_func_name(kernel: str, device: str) -> str:
        return str(CppWrapperCpu.get_c_shim_func_name(kernel, _in_names(device)))

    def write_header(self) -> None:
        super().write_header()  # type: ignore[no-untyped-call]
        if V.graph.aot_mode and not V.graph.is_const_graph:
            info = _PACKAGE_INFO.format(
                torch_mtia=__version__, torch=torch.__version__.partition("+")[0], driver=_C._driver_info()["name"]
            )
            self.header.splice(info)

    def codegen_inputs(self) -> None:
        # Without upstream's copies of misaligned inputs, in which what the model writes would be lost: kernels of mtia
        # need no other alignment than that of an element.
        CppWrapperCpu.codegen_inputs(self)

    def codegen_device(self, device: torch.device) -> str:
        """Upstream's names the index that the program was exported with, wherever the package is loaded."""
        kind, index = super().codegen_device(device).split(", ")  # type: ignore[no-untyped-call]
        if device.type == device_type():
            index = self.codegen_device_idx(device, index)  # type: ignore[no-untyped-call]
        return f"{kind}, {index}"

    def _generate_kernel_call_helper(self, kernel_name: str, *args: Any, **options: Any) -> None:
        super()._generate_kernel_call_helper(kernel_name, *args, **options)
        name = f"call_{kernel_name}"
        if (call := self._triton_call_wrappers.get(name)) is not None:
            fields = {field.name: getattr(call, field.name) for field in dataclasses.fields(call)}
            self._triton_call_wrappers[name] = _KernelCall(**fields)

    def generate_fallback_kernel_with_runtime_lookup_aot(self, op_overload: Any, *args: Any) -> None:
        _serialize_integers_left_out(op_overload, V.extern_kernel_nodes[-1].node)
        super().generate_fallback_kernel_with_runtime_lookup_aot(op_overload, *args)


class _KernelCall(DeferredTritonCallWrapper):
    """Passes numbers that a kernel takes as float64 in full. Upstream cuts them to float32, or to an integer where they
    are computed."""

    def _get_cpp_param_type(self, name: str, arg_type: Any, signature: dict[str, str] | None = None) -> str:
        if signature is None and (kernel := CudaKernelParamCache.get(self.kernel_name)):
            signature = kernel["triton_meta"]["signature"]
        is_number = isinstance(arg_type, type) and str((signature or {}).get(name)).startswith(("fp", "bf"))
        if is_number or arg_type is float:
            return f"double {name}"
        return str(super()._get_cpp_param_type(name, arg_type, signature))


def _in_names(device: str) -> str:
    return SHIMS if device == device_type() else device


def _serialize_integers_left_out(operator: Any, node: Any) -> None:
    """Upstream leaves arguments with default values out, and has generated code pass the integers among them."""
    if not isinstance(operator, torch._ops.OpOverload):
        return
    inputs = {each.name: each for each in node.inputs}
    serializer = GraphModuleSerializer(None, [])
    for argument in operator._schema.arguments:
        if argument.name not in inputs and argument.kwarg_only and type(argument.default_value) is int:
            value = serializer.serialize_input(argument.default_value, argument.type)
            inputs[argument.name] = NamedArgument(name=argument.name, arg=value, kind=ArgumentKind.KEYWORD)
    node.inputs = [inputs[each.name] for each in operator._schema.arguments if each.name in inputs]
