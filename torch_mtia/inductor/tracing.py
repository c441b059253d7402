"""How Dynamo traces `torch.mtia.device`, `stream`, `synchronize` and the like: as those of
torch.accelerator."""

from __future__ import annotations

import contextlib
from types import ModuleType
from typing import Any

import torch

from torch_mtia.backend import device_module, device_type


def register(dynamo: ModuleType) -> None:
    """For the name that the device has now."""
    module = device_module()
    _register_device_context(module)

    def current_stream(device: Any = None) -> torch.Stream:
        if _is_of_another_device(device):
            torch._dynamo.graph_break("the current stream of another device than the one that is current outside")
        return torch.accelerator.current_stream()

    def synchronize(device: Any = None) -> None:
        # Without a device upstream takes the first one.
        torch.accelerator.synchronize(torch.accelerator.current_device_index() if device is None else device)

    def stream(stream: torch.Stream | None) -> Any:
        return contextlib.nullcontext() if stream is None else stream

    def current_device() -> int:
        return int(torch.accelerator.current_device_index())

    def is_available() -> bool:
        return torch.accelerator.is_available()

    def device_count() -> int:
        return int(_number_of_devices())

    for polyfill in (current_stream, synchronize, stream, current_device, is_available, device_count):
        original = getattr(module, polyfill.__name__)
        # From 2.14 on upstream has rules of its own for some, which do not ask of which device a stream is.
        dynamo.trace_rules.get_torch_obj_rule_map().pop(original, None)
        dynamo.decorators.substitute_in_graph(original, skip_signature_check=True)(polyfill)


# A process never has another number.
@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _number_of_devices() -> int:
    return int(device_module().device_count())


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _is_of_another_device(device: Any) -> bool:
    """Whether the program, as it is traced now, means a stream of another device than the current one outside of it,
    whose stream upstream takes in any case."""
    from torch._dynamo.symbolic_convert import InstructionTranslator

    current = outside = device_module().current_device()
    frame: Any = InstructionTranslator.current_tx().output.current_tx
    while frame is not None:
        for block in reversed(frame.block_stack):
            outside = getattr(block.with_context, "outside", outside)
        frame = frame.parent
    return bool(outside != (current if device is None else _index(device, optional=True)))


def _register_device_context(module: Any) -> None:
    from torch._dynamo.variables.ctx_manager import GenericDeviceVariable, register_device_context_manager

    class MTIADeviceVariable(GenericDeviceVariable):
        _exchange_fn = staticmethod(module._exchange_device)
        _maybe_exchange_fn = staticmethod(module._maybe_exchange_device)
        _get_device_index_fn = staticmethod(_index)

        def enter(self, tx: Any) -> Any:
            self.outside = device_module().current_device()
            return super().enter(tx)

        def module_name(self) -> str:
            return f"torch.{device_type()}"

        def python_type(self) -> type:
            return module.device  # type: ignore[no-any-return]

    register_device_context_manager(module.device, MTIADeviceVariable)


def _index(device: Any, *, optional: bool) -> int:  # noqa: ARG001 - upstream passes it
    return int(torch._utils._get_device_index(device, optional=True))
