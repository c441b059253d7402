"""Replacements outside torch.compile: optimizers, the profiler, graphs, Triton's launch, allocation, saved inputs."""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable
from types import CodeType
from typing import Any

import torch

from torch_mtia.backend import device_module, device_type
from torch_mtia.higher_order import autocast_key


def profile_of_mtia(original: Callable[..., Any]) -> Callable[..., Any]:
    def _parse_kineto_results(self: Any, result: Any, *args: Any, **kwargs: Any) -> Any:
        from torch._C._autograd import DeviceType

        from torch_mtia.profiler import credit_operators

        events = original(self, result, *args, **kwargs)
        if device_type() == "mtia":
            credit_operators(events, result, DeviceType.MTIA)
        return events

    return _parse_kineto_results


def _is_storage_and_shape(x: torch.Tensor) -> bool:
    plain = type(x).__torch_dispatch__ is torch.Tensor.__torch_dispatch__
    return x.device.type == "mtia" and x.layout == torch.strided and not x.is_quantized and not x.is_nested and plain


def pickled_by_storage(original: Callable[..., Any]) -> Callable[..., Any]:
    """Does what upstream's function does for other devices, for tensors that consist of a storage and a shape."""

    def _reduce_ex_internal(self: torch.Tensor, proto: int) -> Any:
        if not _is_storage_and_shape(self):
            return original(self, proto)
        torch.utils.hooks.warn_if_has_hooks(self)
        hooks: dict[Any, Any] = collections.OrderedDict()
        layout = (self.storage_offset(), tuple(self.size()), self.stride(), self.requires_grad, hooks)
        metadata = torch._utils.get_tensor_metadata(self)
        of_metadata = (metadata,) if metadata else ()
        storage = self.untyped_storage()
        if self.dtype in torch.storage._new_dtypes():
            return torch._utils._rebuild_tensor_v3, (storage, *layout, self.dtype, *of_metadata)
        typed = torch.storage.TypedStorage(wrap_storage=storage, dtype=self.dtype, _internal=True)
        return torch._utils._rebuild_tensor_v2, (typed, *layout, *of_metadata)

    return _reduce_ex_internal


def copied_by_storage(original: Callable[..., Any]) -> Callable[..., Any]:
    """Puts the copy that upstream makes in a copy of the whole storage, which `memo` has for other tensors of it."""

    def __deepcopy__(self: torch.Tensor, memo: dict[int, Any]) -> Any:
        is_first = id(self) not in memo
        copy = original(self, memo)
        if is_first and _is_storage_and_shape(self) and not (self.is_conj() or self.is_neg()):
            storage = self.untyped_storage().__deepcopy__(memo)
            moved = torch.empty(0, dtype=self.dtype, device=self.device)
            copy.data = moved.set_(storage, self.storage_offset(), self.size(), self.stride())
        return copy

    return __deepcopy__


def new_on_mtia(original: Callable[..., Any]) -> Callable[..., Any]:
    def new(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if self.device.type != "mtia":
            return original(self, *args, **kwargs)
        device = torch.device(kwargs.pop("device", None) or self.device)
        if device.type != "mtia":
            raise RuntimeError(f"new(): the tensor is on {self.device}, and this method makes no tensor on {device}")
        first = args[0] if args else None
        if isinstance(first, torch.UntypedStorage | torch.TypedStorage):
            return torch.empty(0, dtype=self.dtype, device=device).set_(first)
        if isinstance(first, torch.Tensor) and self.is_sparse:
            return torch.sparse_coo_tensor(*args, dtype=self.dtype)
        if isinstance(first, torch.Tensor) and first.device == device:
            if first.dtype != self.dtype:
                raise TypeError(f"new(): expected a tensor of {self.dtype}, and got one of {first.dtype}")
            return torch.ops.aten.alias(first)
        return original(torch.empty(0, dtype=self.dtype, layout=self.layout), *args, **kwargs).to(device)

    return new


def keeping_what_is_shared(original: Callable[..., torch.nn.Module]) -> Callable[..., torch.nn.Module]:
    def _apply(self: torch.nn.Module, *args: Any, **kwargs: Any) -> torch.nn.Module:
        places = collections.defaultdict(list)
        for module in self.modules():
            for name, parameter in module._parameters.items():
                if parameter is not None:
                    places[id(parameter)].append((module, name))
        result = original(self, *args, **kwargs)
        for (first, first_name), *others in places.values():
            for module, name in others:
                module._parameters[name] = first._parameters[first_name]
        return result

    return _apply


def is_current_stream_capturing(_original: Any) -> Callable[[], bool]:
    def is_current_stream_capturing() -> bool:
        """Whether work of the current stream of the current device is being captured in a graph."""
        from torch_mtia import graphs

        return device_module().is_initialized() and graphs.is_stream_capturing(device_module().current_stream())

    return is_current_stream_capturing


def get_device_name(_original: Any) -> Callable[..., str]:
    def get_device_name(device: Any = None) -> str:
        """Returns the name of a device, or of the current one."""
        return str(device_module().get_device_properties(device)["name"])

    return get_device_name


def _is_for_mtia(kernel: Any) -> bool:
    """Whether Triton has compiled the kernel for the device."""
    return kernel.metadata.target.backend in ("mtia", device_type())


def loaded_for_its_device(original: Callable[..., None]) -> Callable[..., None]:
    def _init_handles(self: Any) -> None:
        loaded = self.module is not None
        try:
            original(self)
        except Exception:
            if _is_for_mtia(self):
                self._run = None  # or the next launch would call it with the function that is not there
            raise
        if not loaded:
            from torch_mtia.triton.launch import refusing_tensors_of_mtia

            self._run = refusing_tensors_of_mtia(self._run)

    return _init_handles


def keeping_our_binaries(code: CodeType) -> CodeType:
    constants = ((*each, "mtiabin") if _lacks_our_binaries(each) else each for each in code.co_consts)
    return code.replace(co_consts=tuple(constants))


def _lacks_our_binaries(constant: Any) -> bool:
    return isinstance(constant, tuple) and {"cubin", "hsaco"} <= {*constant} and "mtiabin" not in constant


def carrying_over(original: Callable[..., Any]) -> Callable[..., Any]:
    """Carries what an autotuner restores and zeroes between measurements over to the one that takes its place."""

    def recreate_variable(self: Any, variable: Any, *, kernel: Any, **others: Any) -> Any:
        names = ("restore_value", "reset_to_zero")
        kept = {name: value for name in names if (value := getattr(variable.kernel, name, None))}
        if (
            kept
            and kernel is not variable.kernel
            and all(hasattr(kernel, name) for name in names)
            and _is_triton_ours()
        ):
            for name, value in kept.items():
                setattr(kernel, name, getattr(kernel, name) or value)
        return original(self, variable, kernel=kernel, **others)

    return recreate_variable


def forgetting_what_was_measured(original: Callable[..., Any]) -> Callable[..., Any]:
    """Starts a measurement of an autotuner: what the last one found, for other arguments, is no longer true."""

    @functools.wraps(original)
    def prune_configs(self: Any, kwargs: dict[str, Any]) -> Any:
        self.measured_on_mtia = {}
        return original(self, kwargs)

    return prune_configs


def measured_once(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def _bench(self: Any, *args: Any, config: Any, **meta: Any) -> Any:
        measure = functools.partial(original, self, *args, config=config, **meta)
        measured = vars(self).get("measured_on_mtia")
        if measured is None or not _is_triton_ours():
            return measure()
        from torch_mtia.triton import same_code

        return same_code.measured_once(measured, measure, self, config, args, meta)

    return _bench


def _is_triton_ours() -> bool:
    from triton.runtime import driver

    from torch_mtia.triton.driver import MTIADriver

    return isinstance(driver.active, MTIADriver)


def hash_on_the_cpu(original: Callable[..., str]) -> Callable[..., str]:
    def hash_storage(storage: torch.UntypedStorage, *, stable_hash: bool = False) -> str:
        return original(storage, stable_hash=stable_hash or storage.device.type == device_type())

    return hash_storage


def functional_tensors_as_they_are(original: Callable[..., str]) -> Callable[..., str]:
    def _str_intern(inp: torch.Tensor, *, tensor_contents: str | None = None) -> str:
        if inp.device.type == device_type() and torch._is_functional_tensor(inp):
            return f"_to_functional_tensor({torch._from_functional_tensor(inp)!r})"
        return original(inp, tensor_contents=tensor_contents)

    return _str_intern


def with_autocast(original: list[Any]) -> list[Any]:
    return [*original, autocast_key()]


def attending_flexibly(original: Callable[..., None]) -> Callable[..., None]:
    def _validate_device(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
        if query.device.type != device_type():
            original(query, key, value)

    return _validate_device


def capturable_on_mtia(original: Callable[..., list[str]]) -> Callable[..., list[str]]:
    # TorchScript compiles it, and the original with it.
    def _get_capturable_supported_devices(supports_xla: bool = True) -> list[str]:
        devices = original(supports_xla)
        if not torch.jit.is_scripting():  # type: ignore[attr-defined]
            devices.append(device_type())
        return devices

    return _get_capturable_supported_devices
