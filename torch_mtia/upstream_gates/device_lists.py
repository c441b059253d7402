"""Gates in lists of devices that upstream writes out, and in functions that name one device, or what is its alone."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Mapping
from types import CodeType, FunctionType
from typing import Any

import torch

from torch_mtia._versions import SUPPORTED_TORCH
from torch_mtia.backend import device_type
from torch_mtia.upstream_gates.gate import Gate
from torch_mtia.upstream_gates.ours import is_ours

Versions = tuple[tuple[int, int], ...]
Arguments = dict[str, Any]


def device_list(
    name: str,
    module: str,
    why: str,
    versions: Versions = SUPPORTED_TORCH,
    *,
    in_place_of: str | None = None,
    of: Callable[[Arguments], Any] | None = None,
    is_function: bool = True,
    also_in: tuple[str, ...] = (),
    **entry: Any,
) -> Gate:
    """A gate in a function that asks whether a device is in a list that it writes out, or in the list itself.

    The code of a function is replaced, and not the function, which upstream keeps in tables too. A list only grows, so
    that nothing changes for other devices.

    Args:
        also_in: other modules that have imported the list by value.
        entry: the fields of Gate of that name and the one beside it, for a list in a table.
        in_place_of: the device whose place ours takes, for a list that the function makes when it runs.
        of: which of the function's arguments decide whether ours takes that place, as in `named_instead`. Without it,
            ours always does: only for "mtia", which is no device where ours has another name.
    """

    def opened(value: Any) -> Any:
        if isinstance(value, CodeType):
            return value.replace(co_consts=tuple(map(opened, value.co_consts)))
        if value is not None and value == in_place_of:
            return device_type()
        if not isinstance(value, tuple | frozenset | list):
            return value
        if in_place_of is not None:
            return type(value)(map(opened, value))
        if not is_device_list(value) or device_type() in value:
            return value
        return type(value)([*value, device_type()])

    def replace(value: Any) -> Any:
        return opened(value) if of is None else _chosen_at_the_call(value, opened(value), of)

    return Gate(
        name=f"{name}.__code__" if is_function else name,
        modules=(module, *also_in),
        why=why,
        replace=replace,
        is_needed=lambda value: not _names(value, device_type()),
        versions=versions,
        by_name=True,
        **entry,
    )


def named_instead(
    name: str,
    module: str,
    why: str,
    names: Mapping[str, Callable[[], str]],
    versions: Versions = SUPPORTED_TORCH,
    of: Callable[[Arguments], Any] = lambda arguments: arguments,
) -> Gate:
    """A gate in a function that names what one device alone has: it names something else, as `names` says, in calls
    that concern our device.

    Args:
        of: takes the function's arguments, by name, and returns those that decide: see `is_ours`.
    """

    def renamed(value: Any) -> Any:
        if isinstance(value, CodeType):
            attributes = (names[each]() if each in names else each for each in value.co_names)
            return value.replace(co_names=tuple(attributes), co_consts=tuple(map(renamed, value.co_consts)))
        if isinstance(value, str):
            return re.sub("|".join(rf"\b{old}\b" for old in names), lambda found: names[found[0]](), value)
        return value

    return Gate(
        name=f"{name}.__code__",
        modules=(module,),
        why=why,
        replace=lambda code: _chosen_at_the_call(code, renamed(code), of),
        is_needed=lambda code: renamed(code) != code and not _names(code, device_type()),
        versions=versions,
        by_name=True,
    )


@dataclasses.dataclass(frozen=True, eq=False)
class _Choice:
    """What the code of a replaced function asks: which of two codes runs with the arguments that it was called with."""

    original: CodeType
    ours: CodeType
    of: Callable[[Arguments], Any]
    functions: dict[bool, FunctionType] = dataclasses.field(default_factory=dict)

    def __call__(self, scope: dict[str, Any], arguments: Arguments) -> FunctionType:
        concerns_us = is_ours(self.of(arguments))
        if concerns_us not in self.functions:  # of the one module that has the function
            self.functions[concerns_us] = FunctionType(self.ours if concerns_us else self.original, scope)
        return self.functions[concerns_us]


def _chosen_at_the_call(original: CodeType, ours: CodeType, of: Callable[[Arguments], Any]) -> CodeType:
    """Code with the parameters of `original` that runs `ours` if its arguments concern the device, else `original`."""
    if original.co_freevars:
        raise ValueError(
            f"{original.co_name} is a closure, {', '.join(original.co_freevars)}, whose code cannot choose"
        )
    parameters, arguments = _parameters(original)
    # Nothing but a constant can bring an object into code: the text stands for the choice.
    source = f"lambda {parameters}: '{_Choice.__name__}'.__call__(globals(), locals())({arguments})"
    (code,) = (each for each in compile(source, original.co_filename, "eval").co_consts if isinstance(each, CodeType))
    choice = _Choice(original, ours, of)
    chosen = code.replace(
        co_consts=tuple(choice if each == _Choice.__name__ else each for each in code.co_consts),
        co_name=original.co_name,
        co_firstlineno=original.co_firstlineno,
    )
    if not hasattr(original, "co_qualname"):  # Python 3.10
        return chosen
    return chosen.replace(co_qualname=original.co_qualname)  # type: ignore[call-arg]


def _parameters(code: CodeType) -> tuple[str, str]:
    """What a function of that code takes, without defaults, and how to pass it all on."""
    number = code.co_argcount + code.co_kwonlyargcount
    positional, keywords = code.co_varnames[: code.co_argcount], code.co_varnames[code.co_argcount : number]
    others = list(code.co_varnames[number:])
    several = others.pop(0) if code.co_flags & inspect.CO_VARARGS else ""
    named = others.pop(0) if code.co_flags & inspect.CO_VARKEYWORDS else ""
    only, plain = positional[: code.co_posonlyargcount], positional[code.co_posonlyargcount :]
    star = [f"*{several}"] if several or keywords else []
    rest = [f"**{named}"] if named else []
    taken = [*only, *(["/"] if only else []), *plain, *star, *keywords, *rest]
    given = [*positional, *([f"*{several}"] if several else []), *(f"{each}={each}" for each in keywords), *rest]
    return ", ".join(taken), ", ".join(given)


def with_another_cuda(function: Any, cuda: Any) -> Any:
    """Upstream's own code, for which `torch.cuda` is that object."""

    class Torch:
        def __getattr__(self, name: str) -> Any:
            return cuda if name == "cuda" else getattr(torch, name)

    scope = {**function.__globals__, "torch": Torch()}
    return FunctionType(function.__code__, scope, function.__name__, function.__defaults__, function.__closure__)


def with_another_constant(function: FunctionType, old: str, new: str) -> FunctionType:
    """Upstream's own code, in which one constant is another."""
    code = function.__code__
    code = code.replace(co_consts=tuple(new if each == old else each for each in code.co_consts))
    return FunctionType(code, function.__globals__, function.__name__, function.__defaults__, function.__closure__)


def is_device_list(value: Any) -> bool:
    return isinstance(value, tuple | frozenset | list) and "cuda" in value and "xpu" in value


def _names(value: Any, device: str) -> bool:
    """Whether a list, or the code of a function, names the device."""
    if isinstance(value, _Choice):
        return _names(value.ours, device)
    parts = (*value.co_consts, *value.co_names) if isinstance(value, CodeType) else value
    if isinstance(parts, tuple | frozenset | list):
        return any(_names(part, device) for part in parts)
    return bool(parts == device)
