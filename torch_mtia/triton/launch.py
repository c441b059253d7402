"""The launcher of a compiled kernel: which Python arguments become which values of its packed block.

The packing itself is C++ (csrc/python/packed_arguments.h); this module translates Triton's signature for it, once for
each kernel.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from torch_mtia import _C
from torch_mtia.torch_version import descriptors_round

# None: takes no room. (name, type): one value. (name, entries): a tuple. (name, entries, decompose): what decompose
# makes of the value is the tuple.
Decompose: TypeAlias = Callable[[Any], tuple[Any, ...]]
Entry: TypeAlias = "tuple[str, str] | tuple[str, list[Entry]] | tuple[str, list[Entry], Decompose] | None"

_DESCRIPTOR = re.compile(r"tensordesc<(?P<dtype>[^\[>]*)\[(?P<shape>[^\]]*)\]")


class Compiled:
    """What Triton compiled, as observers of launches get it."""

    __slots__ = ("metadata", "source")

    def __init__(self, source: Any, metadata: Any) -> None:
        self.source = source
        self.metadata = metadata


def make_launcher(source: Any, metadata: Any = None) -> Callable[..., None]:
    """What Triton calls `launcher_cls`, with an ASTSource or an IRSource."""
    signature: Mapping[Any, Any] = source.signature
    entries = [entry(str(name), kind) for name, kind in signature.items()]
    return _C._make_launcher(entries, Compiled(source, metadata))


def entry(name: str, kind: Any) -> Entry:
    """The entry of one argument, whose type is `kind` in Triton's signature."""
    if isinstance(kind, tuple):
        return (name, [entry(f"{name}[{i}]", element) for i, element in enumerate(kind)])
    if kind == "constexpr":
        return None
    if match := _DESCRIPTOR.match(kind):
        return _descriptor_entry(name, match["dtype"], match["shape"].count(",") + 1)
    return (name, kind)


def _descriptor_entry(name: str, dtype: str, rank: int) -> Entry:
    """A tensor descriptor made on the host."""
    types = [*taken_apart(dtype, rank), *["i32"] * rank, *["i64"] * rank]
    return (name, [(name, kind) for kind in types], decompose_descriptor)


def taken_apart(dtype: str, rank: int) -> list[str]:
    """What Triton's pass rewrite_tensor_descriptor_to_pointer makes of a descriptor: its address, shape, strides, and
    flags. After it the kernel gets the shape and the strides once more, as the front end passes them beside every
    descriptor."""
    return [f"*{dtype}", *["i64"] * (2 * rank), *["i1"] * (1 + descriptors_round())]


def decompose_descriptor(descriptor: Any) -> tuple[Any, ...]:
    """The values of `_descriptor_entry`, in order."""
    shape, strides = tuple(descriptor.shape), tuple(descriptor.strides)
    flags = [descriptor.padding == "nan", *([descriptor.round_f32_to_tf32] if descriptors_round() else [])]
    return (descriptor.base, *shape, *strides, *flags, *shape, *strides)


def refusing_tensors_of_mtia(launcher: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a launcher that raises ValueError for tensors of mtia, if it is another driver's: their addresses mean
    nothing to it. Where the device is not in use there are none, and the launcher is returned as it is."""
    if _C._is_launcher(launcher) or not _C._is_initialized():
        return launcher

    from torch_mtia.backend import device_type

    def launch(*arguments: Any) -> Any:
        for argument in arguments:
            device = getattr(argument, "device", None)
            if getattr(device, "type", None) == device_type():
                raise ValueError(
                    f"a tensor of {device} was passed to a kernel that Triton compiled for another device; make mtia "
                    "the device of kernels with torch_mtia.triton.activate(), or TRITON_DEFAULT_BACKEND=mtia"
                )
        return launcher(*arguments)

    return launch
