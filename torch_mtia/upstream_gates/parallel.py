"""Replacements in the parallel layers above collectives: torch.nn.parallel and torch.nn.SyncBatchNorm."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from types import FunctionType
from typing import Any

import torch

from torch_mtia.backend import device_module, device_type
from torch_mtia.scopes import Overlay, with_globals


def any_hook(original: Callable[..., Any]) -> Callable[..., Any]:
    """bfloat16 is reduced here: the check, which goes by the hook's name, shall not know it."""

    def _check_comm_hook(self: Any, hook: Any) -> None:
        if self.device_type == device_type() and isinstance(hook, FunctionType):
            unnamed = FunctionType(
                hook.__code__, hook.__globals__, "compress_hook", hook.__defaults__, hook.__closure__
            )
            unnamed.__annotations__ = hook.__annotations__
            hook = unnamed
        original(self, hook)

    return _check_comm_hook


def synchronized_on_mtia(original: FunctionType) -> Callable[..., torch.Tensor]:
    """Runs upstream's own code for tensors of the device as for those of PrivateUse1, which it lists by their name."""
    listed = with_globals(
        original, torch=Overlay(torch, _C=Overlay(torch._C, _get_privateuse1_backend_name=device_type))
    )

    @functools.wraps(original)
    def forward(self: Any, input: torch.Tensor) -> torch.Tensor:
        return (listed if input.device.type == device_type() else original)(self, input)  # type: ignore[no-any-return]

    return forward


def swapped(original: Callable[..., Any]) -> Callable[..., Any]:
    """Swaps the data of tensors: they stay the objects that the modules have, and get what is on the device."""

    from torch.distributed.tensor import DTensor

    def _move_states_to_device(
        params: Iterable[torch.nn.Parameter], buffers: Iterable[torch.Tensor], device: torch.device | None, *args: Any
    ) -> None:
        params, buffers = list(params), list(buffers)
        for tensor in (*params, *buffers):
            if device is None or tensor.is_meta or isinstance(tensor, DTensor) or tensor.device == device:
                continue
            with torch.no_grad():
                moved = tensor.to(device)
            if isinstance(tensor, torch.nn.Parameter):
                moved = torch.nn.Parameter(moved, tensor.requires_grad)
            torch.utils.swap_tensors(tensor, moved)
        original(params, buffers, device, *args)

    return _move_states_to_device


def _devices(indices: Sequence[int]) -> list[torch.device]:
    return [torch.device("cpu") if index < 0 else torch.device(device_type(), index) for index in indices]


def copying(ours: Callable[..., Any], original: Callable[..., Any] | None) -> Callable[..., Any]:
    """Of wheels for CUDA, the original copies tensors of CUDA, and to CUDA where that is there."""
    if original is None:
        return ours

    def copy(tensors: torch.Tensor | Sequence[torch.Tensor], *args: Any, **kwargs: Any) -> Any:
        first = tensors if isinstance(tensors, torch.Tensor) else next(iter(tensors), None)
        kind = None if first is None else first.device.type
        is_of_cuda = kind == "cuda" or (kind != device_type() and torch.cuda.is_available())
        return original(tensors, *args, **kwargs) if is_of_cuda else ours(tensors, *args, **kwargs)

    return copy


def _broadcast(tensor: torch.Tensor, devices: Sequence[int]) -> tuple[torch.Tensor, ...]:
    return tuple(tensor.to(device, non_blocking=True) for device in _devices(devices))


def _broadcast_out(tensor: torch.Tensor, out: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    for index, each in enumerate(out):
        if each.shape != tensor.shape:
            raise RuntimeError(
                f"expected all output tensors to have the shape {tuple(tensor.shape)} of the source tensor, but "
                f"output tensor at index {index} has {tuple(each.shape)}"
            )
        each.copy_(tensor, non_blocking=True)
    return tuple(out)


def _broadcast_coalesced(
    tensors: Sequence[torch.Tensor],
    devices: Sequence[int],
    buffer_size: int,  # noqa: ARG001 - nothing is gained by one copy of many
) -> list[list[torch.Tensor]]:
    return [[tensor.detach().to(device, non_blocking=True) for tensor in tensors] for device in _devices(devices)]


def _scatter(
    tensor: torch.Tensor,
    devices: Sequence[int],
    chunk_sizes: Sequence[int] | None = None,
    dim: int = 0,
    streams: Sequence[torch.Stream | None] | None = None,
) -> list[torch.Tensor]:
    parts = tensor.split(list(chunk_sizes), dim) if chunk_sizes is not None else tensor.chunk(len(devices), dim)
    result = []
    for index, (part, device) in enumerate(zip(parts, _devices(devices), strict=False)):
        stream = streams[index] if streams is not None else None
        with device_module().stream(stream):
            result.append(part.to(device, non_blocking=True, memory_format=torch.contiguous_format))
    return result


def _scatter_out(
    tensor: torch.Tensor,
    out: Sequence[torch.Tensor],
    dim: int = 0,
    streams: Sequence[torch.Stream | None] | None = None,
) -> list[torch.Tensor]:
    parts = tensor.split([each.size(dim) for each in out], dim)
    for index, (part, each) in enumerate(zip(parts, out, strict=True)):
        stream = streams[index] if streams is not None else None
        with device_module().stream(stream):
            each.copy_(part, non_blocking=True)
    return list(out)


def _gather(tensors: Sequence[torch.Tensor], dim: int, destination: int | None = None) -> torch.Tensor:
    index = device_module().current_device() if destination is None else destination
    return torch.cat([tensor.to(device, non_blocking=True) for tensor in tensors for device in _devices([index])], dim)


def _gather_out(tensors: Sequence[torch.Tensor], out: torch.Tensor, dim: int) -> torch.Tensor:
    for part, tensor in zip(out.split([tensor.size(dim) for tensor in tensors], dim), tensors, strict=True):
        part.copy_(tensor, non_blocking=True)
    return out


COPIES: dict[str, Callable[..., Any]] = {
    "_broadcast": _broadcast,
    "_broadcast_out": _broadcast_out,
    "_broadcast_coalesced": _broadcast_coalesced,
    "_scatter": _scatter,
    "_scatter_out": _scatter_out,
    "_gather": _gather,
    "_gather_out": _gather_out,
}


def with_copies(original: Any) -> Overlay:
    """Returns torch as the functions of torch.nn.parallel.comm see it."""
    ours = {name: copying(copy, getattr(original._C, name, None)) for name, copy in COPIES.items()}
    return Overlay(original, _C=Overlay(original._C, **ours))
