"""Inductor on mtia: what torch.compile does for this device beyond what PyTorch brings. See docs/compile.md.

`register` announces it at Inductor's extension points, each when its module is imported; nothing is imported for it.
"""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING

from torch_mtia import torch_version
from torch_mtia.backend import device_type
from torch_mtia.import_hooks import after_import

if TYPE_CHECKING:
    from torch_mtia.inductor.choices import MTIAChoices


def choices_for_mtia() -> MTIAChoices:
    """Returns the value of `torch._inductor.config.inductor_choices_class`, unless somebody sets another."""
    from torch_mtia.inductor.choices import MTIAChoices

    return MTIAChoices()


def register() -> None:
    """Registers template heuristics, the benchmarker and so on for the device type; called again for a new one."""
    after_import("torch._dynamo", _register_tracing)
    after_import("torch._dynamo.device_interface", _register_device_interface)
    after_import(torch_version.TEMPLATE_HEURISTICS, _register_template_heuristics)
    after_import("torch._inductor.runtime.benchmarking", _register_benchmarker)
    after_import("torch._inductor.codegen.python_wrapper_mtia", _register_backend)
    after_import("torch._inductor.codegen.mtia.device_op_overrides", _register_device_op_overrides)


def _register_tracing(module: ModuleType) -> None:
    from torch_mtia.inductor import tracing

    tracing.register(module)


def _register_device_interface(module: ModuleType) -> None:
    """For the name that Dynamo does not know."""
    if device_type() == "mtia":
        return
    from torch_mtia.inductor.device_interface import DeviceInterface

    for name in (device_type(), *(f"{device_type()}:{index}" for index in range(DeviceInterface.device_count()))):
        module.register_interface_for_device(name, DeviceInterface)


def _register_template_heuristics(_module: ModuleType) -> None:
    from torch_mtia.inductor import template_heuristics

    template_heuristics.register(device_type())


def _register_benchmarker(module: ModuleType) -> None:
    from torch_mtia.inductor.benchmark import benchmark

    module.register_benchmarker(device_type(), benchmark)


def _register_backend(_module: ModuleType) -> None:
    """Before upstream registers its own, which it does where there is none."""
    from torch._inductor.codegen.common import register_backend_for_device
    from torch._inductor.codegen.wrapper_fxir import WrapperFxCodegen

    from torch_mtia.inductor import config
    from torch_mtia.inductor.cpp_wrapper import MTIACppWrapper
    from torch_mtia.inductor.graph_pass import GraphPass
    from torch_mtia.inductor.scheduling import MTIAScheduling
    from torch_mtia.inductor.wrapper import MTIAWrapper

    register_backend_for_device(
        device_type(),
        MTIAScheduling,
        MTIAWrapper,
        MTIACppWrapper,
        WrapperFxCodegen,
        device_custom_pass=GraphPass(),
        device_custom_config=config,  # type: ignore[arg-type] # a module, whose class install_config_module sets
    )


def _register_device_op_overrides(_module: ModuleType) -> None:
    """In place of upstream's, which have just been registered."""
    from torch._inductor.codegen.common import register_device_op_overrides

    from torch_mtia.inductor.device_op_overrides import DeviceOpOverrides

    register_device_op_overrides(device_type(), DeviceOpOverrides())
