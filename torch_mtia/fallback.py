"""Control over the CPU fallback, which runs every operator that has no kernel for the device.

docs/fallback.md describes how it treats views, `out=` arguments and generators. All controls apply to the process, not
to a thread: the backward pass calls operators from its own threads.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterable, Iterator
from typing import Literal, cast, get_args

import torch

from torch_mtia import _C, driver, environment, unavailable
from torch_mtia.backend import device_module, device_type, dispatch_key

__all__ = ["deny", "forbid", "force", "reset", "stats", "warn"]

WarnMode = Literal["never", "once", "always"]
Operators = Iterable[str] | Literal["all"]

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
    """Returns the number of fallbacks of each operator since the last `reset()`, largest first.

    For example `{"aten::cumsum": 2}`.
    """
    counts = _C._fallback_stats()
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def reset() -> None:
    """Sets every count to zero. In the mode `warn("once")`, each operator warns once more."""
    _C._fallback_reset()


def warn(mode: WarnMode) -> None:
    """Sets when a fallback warns: "never" (the default), "once" for each operator, or "always".

    Raises:
        ValueError: the mode is another.
    """
    if mode not in get_args(WarnMode):
        raise ValueError(f"mode must be one of {', '.join(map(repr, get_args(WarnMode)))}, not {mode!r}")
    _C._fallback_set_warn(mode)


def deny(operators: Operators) -> None:
    """Makes the operators raise NotImplementedError, with their name, in place of falling back.

    Replaces the list of the last call; `deny([])` clears it. "aten::add.Tensor" names one overload and "aten::add" all
    of them; "aten::" is optional. `deny("all")` denies every operator.

    Raises:
        ValueError: there is no operator of that name. The list is unchanged.
        TypeError: the argument is another string.
    """
    if operators == "all":
        _C._fallback_set_denied(["all"])
        return
    _check_list("deny", operators)
    registered = torch._C._dispatch_get_all_op_names()
    _C._fallback_set_denied([_full_name(operator, registered) for operator in operators])


def force(operators: Operators) -> None:
    """Makes the operators fall back although the device has kernels for them, to find out whether a kernel is wrong.

    Replaces the list of the last call; `force([])` clears it. Names are as in `deny`; a name without an overload stands
    for all overloads that have a kernel. `force("all")` forces each of ATen's operators that can be. Gradients are
    computed as without it. Do not call it while another thread runs the operators.

    Raises:
        ValueError: there is no operator of that name; it has no kernel for the device, or none for the CPU; or the
            fallback itself needs it. The list is unchanged.
        TypeError: the argument is another string.
    """
    registered = torch._C._dispatch_get_all_op_names()
    if operators == "all":
        forced = {
            name
            for name in registered
            if name.startswith("aten::")
            and _base(name) not in _FOUNDATION
            and _has_kernel(name)
            and _has_cpu_kernel(name)
        }
    else:
        _check_list("force", operators)
        forced = {kernel for operator in operators for kernel in _kernels(_full_name(operator, registered), registered)}
    _C._fallback_set_forced([(base, overload) for base, _, overload in (name.partition(".") for name in forced)])


def register() -> None:
    """Applies TORCH_MTIA_FALLBACK. If an operator is unknown or cannot be forced, warns and leaves the process without
    devices: the first use of one raises RuntimeError."""
    settings = environment.settings()
    named: dict[str, list[str]] = {control: [] for control in environment.FALLBACK_CONTROLS}
    for item in settings.fallback:
        control, _, value = item.partition(":")
        named[control].append(value)
    for mode in named["warn"]:
        warn(cast(WarnMode, mode))
    try:
        for control, replace_list in (("deny", deny), ("force", force)):
            replace_list("all" if "all" in named[control] else named[control])
    except ValueError as error:
        reason = f"{environment.FALLBACK.name}: {error}"
        # Kernels can only be asked for once they are registered, and then the device is, too.
        driver.configure(settings._replace(devices=0))
        unavailable.refuse(reason, error, device_module())
        with contextlib.suppress(Warning):  # where warnings are errors
            warnings.warn(reason, stacklevel=2)


def _check_list(function: str, operators: Iterable[str]) -> None:
    if isinstance(operators, str):
        raise TypeError(
            f"{function}() takes a list of names, or 'all'; for one operator write {function}([{operators!r}])"
        )


def _base(name: str) -> str:
    """Returns the operator's name without the overload's."""
    return name.partition(".")[0]


def _has_kernel(name: str) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(name, dispatch_key())


def _has_cpu_kernel(name: str) -> bool:
    # What is there for backends to override has a CPU kernel that only raises.
    return torch._C._dispatch_has_computed_kernel_for_dispatch_key(name, "CPU") and "overrideable" not in name


def _kernels(name: str, registered: list[str]) -> list[str]:
    """Returns the overloads that the name stands for and that have kernels for both the device and the CPU."""
    base, dot, _ = name.partition(".")
    if base in _FOUNDATION:
        raise ValueError(f"{name!r} cannot be forced: the fallback itself needs it on {device_type()}")
    native = list(filter(_has_kernel, [name] if dot else [other for other in registered if _base(other) == base]))
    if not native:
        raise ValueError(f"{name!r} has no kernel for {device_type()} that could be set aside: see where it falls back")
    both = list(filter(_has_cpu_kernel, native))
    if not both:
        raise ValueError(f"{name!r} has no kernel for the CPU to fall back to")
    return both


def _full_name(operator: str, registered: list[str]) -> str:
    """Returns the operator's name with its namespace. Raises ValueError if there is no such operator."""
    name = operator if "::" in operator else f"aten::{operator}"
    base, dot, _ = name.partition(".")
    overloads = [other for other in registered if _base(other) == base]
    if name not in overloads and (dot or not overloads):
        known = f"; its overloads are {', '.join(sorted(overloads))}" if overloads else ""
        raise ValueError(f"{operator!r} is not an operator{known}. Names look like 'aten::add.Tensor' or 'add'")
    return name


@contextlib.contextmanager
def forbid() -> Iterator[None]:
    """Returns a context in which every fallback raises NotImplementedError with the operator's name.

    It applies to all threads of the process, and so to the backward pass too. Contexts nest.
    """
    _C._fallback_forbid(True)
    try:
        yield
    finally:
        _C._fallback_forbid(False)
