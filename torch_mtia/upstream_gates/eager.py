"""Replacements outside torch.compile: optimizers, the profiler, graphs, Triton's launch, allocation, saved inputs."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any

import torch

from torch_mtia.door import device_module, device_type


def capturable_on_mtia(original: Callable[..., list[str]]) -> Callable[..., list[str]]:
    def _get_capturable_supported_devices(supports_xla: bool = True) -> list[str]:
        return [*original(supports_xla), device_type()]

    return _get_capturable_supported_devices


def profile_of_mtia(original: Callable[..., Any]) -> Callable[..., Any]:
    def _parse_kineto_results(self: Any, result: Any, *args: Any, **kwargs: Any) -> Any:
        from torch._C._autograd import DeviceType

        from torch_mtia.profiler import credit_operators

        events = original(self, result, *args, **kwargs)
        if device_type() == "mtia":
            credit_operators(events, result, DeviceType.MTIA)
        return events

    return _parse_kineto_results


def pickled_by_storage(original: Callable[..., Any]) -> Callable[..., Any]:
    """What upstream's function does for other devices, for tensors that consist of a storage and a shape."""

    def _reduce_ex_internal(self: torch.Tensor, proto: int) -> Any:
        plain = type(self).__torch_dispatch__ is torch.Tensor.__torch_dispatch__
        if (
            self.device.type != "mtia"
            or self.layout != torch.strided
            or self.is_quantized
            or self.is_nested
            or not plain
        ):
            return original(self, proto)
        torch.utils.hooks.warn_if_has_hooks(self)
        layout = (
            self.storage_offset(),
            tuple(self.size()),
            self.stride(),
            self.requires_grad,
            collections.OrderedDict(),
        )
        metadata = torch._utils.get_tensor_metadata(self)
        of_metadata = (metadata,) if metadata else ()
        storage = self.untyped_storage()
        if self.dtype in torch.storage._new_dtypes():
            return torch._utils._rebuild_tensor_v3, (storage, *layout, self.dtype, *of_metadata)
        typed = torch.storage.TypedStorage(wrap_storage=storage, dtype=self.dtype, _internal=True)
        return torch._utils._rebuild_tensor_v2, (typed, *layout, *of_metadata)

    return _reduce_ex_internal


def is_current_stream_capturing(_original: Any) -> Callable[[], bool]:
    def is_current_stream_capturing() -> bool:
        """Whether work of the current stream of the current device is being captured in a graph."""
        from torch_mtia import graphs

        return device_module().is_initialized() and graphs.is_stream_capturing(device_module().current_stream())

    return is_current_stream_capturing


def refusing_elsewhere(original: Callable[..., None]) -> Callable[..., None]:
    def _init_handles(self: Any) -> None:
        loaded = self.module is not None
        try:
            original(self)
        except Exception:
            self._run = None  # or the next launch would call it with the function that is not there
            raise
        if not loaded:
            from torch_mtia.triton.launch import refusing_tensors_of_mtia

            self._run = refusing_tensors_of_mtia(self._run)

    return _init_handles


def no_metadata_without_hooks(original: Callable[..., Any]) -> Callable[..., Any]:
    from triton.knobs import runtime

    def launch_metadata(self: Any, *arguments: Any) -> Any:
        hooked = getattr(runtime.launch_enter_hook, "calls", True) or getattr(runtime.launch_exit_hook, "calls", True)
        return original(self, *arguments) if hooked else None

    return launch_metadata


def empty_strided_mtia(_original: object) -> Callable[..., Any]:
    from torch_mtia._C import _empty_strided

    return _empty_strided


def is_compiled_out(empty_strided: Callable[..., Any]) -> bool:
    try:
        empty_strided((1,), (1,), torch.float32)
    except RuntimeError as error:
        return "compiled without support" in str(error)
    return False


def hash_on_the_cpu(original: Callable[..., str]) -> Callable[..., str]:
    def hash_storage(storage: torch.UntypedStorage, *, stable_hash: bool = False) -> str:
        return original(storage, stable_hash=stable_hash or storage.device.type == device_type())

    return hash_storage


def functional_tensors_as_they_are(original: Callable[..., str]) -> Callable[..., str]:
    def _str_intern(inp: torch.Tensor, *, tensor_contents: str | None = None) -> str:
        if inp.device.type == "mtia" and torch._is_functional_tensor(inp):
            return f"_to_functional_tensor({torch._from_functional_tensor(inp)!r})"
        return original(inp, tensor_contents=tensor_contents)

    return _str_intern
