"""Control over the CPU fallback, which runs every operator that has no kernel for the device.

What it does with views, `out=` arguments and generators is described in docs/fallback.md. The controls here are of the
process, not of the thread: the backward pass calls operators from threads of its own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Literal, get_args

import torch

from torch_mtia import _C
from torch_mtia.door import device_type, dispatch_key

WarnMode = Literal["never", "once", "always"]

# What the fallback itself is made of: memory, its views, copies, and the choice among kernels of attention.
_FOUNDATION = {
    "aten::empty",
    "aten::empty_strided",
    "aten::_efficientzerotensor",
    "aten::_lazy_clone",
    "aten::as_strided",
    "aten::view",
    "aten::_reshape_alias",
    "aten::unfold",
    "aten::view_as_real",
    "aten::view_as_complex",
    "aten::resize_",
    "aten::set_",
    "aten::_copy_from",
    "aten::_copy_from_and_resize",
    "aten::_local_scalar_dense",
    "aten::record_stream",
    "aten::_fused_sdp_choice",
}


def stats() -> dict[str, int]:
    """How often each operator fell back since the last `reset()`: `{"aten::cumsum": 2, ...}`, most frequent first."""
    counts = _C._fallback_stats()
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def reset() -> None:
    """Sets every count to zero. With `warn("once")`, operators that were named already are named again."""
    _C._fallback_reset()


def warn(mode: WarnMode) -> None:
    """Says whether a fall back warns: "never" (the default), "once" for each operator, or "always"."""
    if mode not in get_args(WarnMode):
        raise ValueError(f"mode must be one of {', '.join(map(repr, get_args(WarnMode)))}, not {mode!r}")
    _C._fallback_set_warn(mode)


def deny(operators: Iterable[str]) -> None:
    """Makes the operators raise NotImplementedError, naming themselves, where they would fall back.

    Replaces the list of the last call; `deny([])` denies nothing. A name is "aten::add.Tensor" for one overload or
    "aten::add" for all of them, and "aten::" may be left out. An unknown name raises ValueError, and the list stays as
    it was.
    """
    if isinstance(operators, str):
        raise TypeError(f"deny() takes a list of names; for one operator write deny([{operators!r}])")
    registered = torch._C._dispatch_get_all_op_names()
    _C._fallback_set_denied([_full_name(operator, registered) for operator in operators])


def force(operators: Iterable[str]) -> None:
    """Makes the operators fall back although they have a kernel for the device: to see whether a kernel is to blame.

    Replaces the list of the last call; `force([])` gives all kernels back. Names are those of `deny`; one without an
    overload stands for all overloads that have a kernel. Gradients are those of the operator. Not while another thread
    runs the operators.

    Raises ValueError for an unknown name, for one that has no kernel (it falls back anyway) or none for the CPU, and
    for the operators on memory that the fallback itself is made of; the list then stays as it was.
    """
    if isinstance(operators, str):
        raise TypeError(f"force() takes a list of names; for one operator write force([{operators!r}])")
    registered = torch._C._dispatch_get_all_op_names()
    forced = {kernel for operator in operators for kernel in _kernels(_full_name(operator, registered), registered)}
    _C._fallback_set_forced([(base, overload) for base, _, overload in (name.partition(".") for name in forced)])


def _kernels(name: str, registered: list[str]) -> list[str]:
    """The overloads that the name stands for and that have kernels for both the device and the CPU."""
    base, dot, _ = name.partition(".")
    if base in _FOUNDATION:
        raise ValueError(f"{name!r} cannot be forced: the fallback itself needs it on {device_type()}")
    overloads = [name] if dot else [other for other in registered if other.partition(".")[0] == base]
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    native = [other for other in overloads if has(other, dispatch_key())]
    if not native:
        raise ValueError(f"{name!r} has no kernel for {device_type()} that could be set aside: see where it falls back")
    # What is there for backends to override has a CPU kernel that only raises.
    computed = torch._C._dispatch_has_computed_kernel_for_dispatch_key
    both = [other for other in native if computed(other, "CPU") and "overrideable" not in other]
    if not both:
        raise ValueError(f"{name!r} has no kernel for the CPU to fall back to")
    return both


def _full_name(operator: str, registered: list[str]) -> str:
    """The operator's name with its namespace. Raises ValueError if there is no such operator."""
    name = operator if "::" in operator else f"aten::{operator}"
    base, dot, _ = name.partition(".")
    overloads = [other for other in registered if other.partition(".")[0] == base]
    if name not in overloads and (dot or not overloads):
        known = f"; its overloads are {', '.join(sorted(overloads))}" if overloads else ""
        raise ValueError(f"{operator!r} is not an operator{known}. Names look like 'aten::add.Tensor' or 'add'")
    return name


@contextlib.contextmanager
def forbid() -> Iterator[None]:
    """Inside the block every fall back raises NotImplementedError that names the operator.

    Holds for all threads of the process, so that it covers the backward pass too. Blocks nest.
    """
    _C._fallback_forbid(True)
    try:
        yield
    finally:
        _C._fallback_forbid(False)
