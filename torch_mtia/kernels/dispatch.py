"""How calls of operators reach Triton kernels, and which ones: the table FAMILIES.

A call is described without its data (`Layout`, `Number`), and the description is planned once: ATen's meta function
says what the result is, the operator's family says how it is launched. Whatever has no plan goes to the kernel that the
operator had before, as it is: other dtypes, tensors that overlap what is written, and every mistake in the arguments,
so that errors are ATen's own.

To add an operator: its name here, and what its family's table asks for.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._C._dynamo import eval_frame as _eval_frame
from torch._ops import OpOverload

from torch_mtia import _C, backend

FAMILIES: dict[str, tuple[str, ...]] = {
    "pointwise": (
        *("add.Tensor", "sub.Tensor", "mul.Tensor", "div.Tensor", "maximum", "minimum", "where.self"),
        *(f"{name}.{other}" for name in ("eq", "ne", "lt", "le", "gt", "ge") for other in ("Tensor", "Scalar")),
        *("bitwise_and.Tensor", "bitwise_or.Tensor", "bitwise_xor.Tensor", "logical_not"),
        *("neg", "abs", "sign", "sqrt", "rsqrt", "reciprocal", "exp", "exp2", "log", "log2", "log10"),
        *("sin", "cos", "tanh", "erf", "floor", "ceil", "trunc", "relu", "sigmoid", "silu", "gelu", "leaky_relu"),
        *("threshold_backward", "sigmoid_backward", "tanh_backward", "silu_backward", "gelu_backward"),
        *("addcmul", "addcdiv", "lerp.Scalar"),
    ),
    "copies": ("copy_", "fill_.Scalar", "zero_"),
    "reductions": ("sum.dim_IntList", "mean.dim", "amax", "amin", "max", "min"),
    "softmax": ("_softmax", "_log_softmax", "_softmax_backward_data", "_log_softmax_backward_data"),
    "matmul": ("mm", "addmm", "bmm", "baddbmm"),
}
PLANS = 4096  # cached for each operator

_NUMBERS = ("Tensor", "number", "Optional[number]")  # types of arguments that may be numbers


class Layout(NamedTuple):
    """A tensor on the device, without its data."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]


class Number(NamedTuple):
    """A number, or a CPU tensor without dimensions, which is one for ATen."""

    kind: type | torch.dtype


@dataclasses.dataclass(frozen=True)
class Request:
    """A call to plan. `arguments` are Layout, Number, or what has no data (None, a dimension, a flag)."""

    name: str
    arguments: tuple[Any, ...]  # without the tensor of out=
    result: Layout  # what the operator returns if it makes a new tensor
    output: Layout  # what is written


@dataclasses.dataclass(frozen=True)
class Plan:
    launch: Callable[[Tensor, Sequence[Any]], None]
    """Computes the output from the arguments of a request, with their data."""
    elementwise: frozenset[int] = frozenset()
    """Positions of arguments that may be the very tensor that is written: each element is read, then written."""
    limits: tuple[float, float] = (-math.inf, math.inf)
    """Numbers that the kernel computes with as ATen does; infinities and NaN are always among them."""
    resolved: bool = False
    """The operator gets tensors whose conjugate or negative is still to be taken, which the kernel does not do."""


class Operator:
    """An operator in one of its forms: with a new result, in place, or with `out`."""

    def __init__(self, name: str, family: str, functional: OpOverload, form: OpOverload) -> None:
        arguments = form._schema.arguments
        self.name, self.family, self.functional, self.form = name, family, functional, form
        self.names = [argument.name for argument in arguments]
        self.defaults = [argument.default_value for argument in arguments]
        self.is_tensor = [str(argument.type) == "Tensor" for argument in arguments]
        self.is_number = [str(argument.type) in _NUMBERS for argument in arguments]
        self.written = next((position for position, argument in enumerate(arguments) if _is_written(argument)), None)
        self.has_out = self.written is not None and arguments[self.written].kwarg_only
        self.sums = family not in ("pointwise", "copies")
        self.previous = torch.library.get_kernel(form, backend.dispatch_key())
        self.plan = functools.lru_cache(PLANS)(self._plan)

    def __call__(self, keys: torch._C.DispatchKeySet, *args: Any, **kwargs: Any) -> Any:
        values = [*args, *self.defaults[len(args) :]]
        for name, value in kwargs.items():
            values[self.names.index(name)] = value
        if self.sums and _C._is_batch_invariant():  # which the tiles of these kernels are not
            return self._call_previous(keys, args, kwargs)
        described, index = self._describe(values)
        planned = None if described is None else self.plan(described, torch.get_default_dtype())
        if planned is None or not self._applies(planned[0], values):
            return self._call_previous(keys, args, kwargs)
        plan, output = planned
        with _on_device(index):
            result = self._output(values, output)
            plan.launch(result, values[:-1] if self.has_out else values)
        return result

    def _call_previous(self, keys: torch._C.DispatchKeySet, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        numbers_as_tensors = [
            _C._wrapped_number(value) if takes and isinstance(value, (bool, int, float, complex)) else value
            for value, takes in zip(args, self.is_tensor, strict=False)
        ]
        return self.previous.call_boxed(keys, *numbers_as_tensors, **kwargs)

    def _describe(self, values: Sequence[Any]) -> tuple[tuple[Any, ...] | None, int]:
        """Returns the call without its data, and the device; None if its tensors are not all on one of our devices."""
        described: list[Any] = []
        indices = set()
        for value, is_number in zip(values, self.is_number, strict=True):
            if isinstance(value, Tensor):
                device = value.device
                if device.type == backend.device_type():
                    indices.add(device.index)
                    described.append(Layout(value.dtype, value.shape, value.stride()))
                elif device.type == "cpu" and value.dim() == 0:
                    described.append(Number(value.dtype))
                else:
                    return None, 0
            elif is_number and isinstance(value, (bool, int, float)):
                described.append(Number(type(value)))
            else:
                described.append(tuple(value) if isinstance(value, list) else value)
        return (tuple(described), indices.pop()) if len(indices) == 1 else (None, 0)

    def _plan(self, described: tuple[Any, ...], _default_dtype: torch.dtype) -> tuple[Plan, Layout] | None:
        """Returns how to launch calls of that description, and what they write. None: as before. Meta functions read
        the default dtype."""
        arguments = described[:-1] if self.has_out else described
        try:
            result = self._on_meta(self.functional, arguments)
            output = result if self.form is self.functional else self._on_meta(self.form, described)
        except Exception:
            return None  # the previous kernel raises it again, as it does
        if not torch.can_cast(result.dtype, output.dtype):
            return None  # an error, which not every meta function raises
        if 0 in output.shape:
            return None  # nothing to launch
        if any(size > 1 and step == 0 for size, step in zip(output.shape, output.stride, strict=True)):
            return None  # writes one element several times, which ATen refuses
        if self.has_out and 0 not in described[-1].shape and described[-1].shape != output.shape:
            return None  # resizing what has elements warns
        try:
            family = importlib.import_module(f"torch_mtia.kernels.{self.family}")
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                f"{self.name} runs as a Triton kernel here, and {error.name} is not installed: "
                "pip install 'torch_mtia[triton]', or set TORCH_MTIA_KERNELS=aten",
                name=error.name,
            ) from error
        plan: Plan | None = family.plan(Request(self.name, arguments, result, output))
        return None if plan is None else (plan, output)

    def _on_meta(self, overload: OpOverload, described: Sequence[Any]) -> Layout:
        values = [_example(value, tensor) for value, tensor in zip(described, self.is_tensor, strict=False)]
        schema = overload._schema.arguments
        positional = [value for value, argument in zip(values, schema, strict=True) if not argument.kwarg_only]
        named = {a.name: value for a, value in zip(schema, values, strict=True) if a.kwarg_only}
        result = overload(*positional, **named)
        return Layout(result.dtype, result.shape, result.stride())

    def _applies(self, plan: Plan, values: Sequence[Any]) -> bool:
        """Whether the data that the plan did not know allow it."""
        low, high = plan.limits
        for value, is_number in zip(values, self.is_number, strict=True):
            if isinstance(value, Tensor):
                if value.device.type == "cpu":
                    value = value.item()
                elif plan.resolved and (value.is_conj() or value.is_neg()):
                    return False
                else:
                    continue
            if is_number and value is not None and not low <= value <= high and math.isfinite(value):
                return False
        if self.written is None:
            return True
        written = values[self.written]
        return not any(
            isinstance(value, Tensor) and _overlap(written, value, position in plan.elementwise)
            for position, value in enumerate(values)
            if position != self.written
        )

    def _output(self, values: Sequence[Any], output: Layout) -> Tensor:
        """Returns the tensor to write, as the plan has it."""
        if self.written is None:
            return _C._empty_strided(tuple(output.shape), tuple(output.stride), output.dtype)
        written: Tensor = values[self.written]
        if written.shape != output.shape:
            written.resize_(output.shape)
        if written.stride() != output.stride:
            written.as_strided_(output.shape, output.stride)
        return written


# Dynamo compiles what runs between the compiled parts of a program, and would take our launches for the program's own.
_eval_frame.set_code_exec_strategy(
    Operator.__call__.__code__,
    _eval_frame._FrameExecStrategy(_eval_frame._FrameAction.SKIP, _eval_frame._FrameAction.SKIP),
)


def _is_written(argument: Any) -> bool:
    return argument.alias_info is not None and argument.alias_info.is_write


def _example(value: Any, is_tensor: bool) -> Any:
    """Returns an argument of that description, for meta functions."""
    if isinstance(value, Layout):
        return torch.empty_strided(value.shape, value.stride, dtype=value.dtype, device="meta")
    if isinstance(value, Number):
        if isinstance(value.kind, torch.dtype):
            return torch.ones((), dtype=value.kind, device="cpu")
        return _C._wrapped_number(value.kind(1)) if is_tensor else value.kind(1)
    return value


def _overlap(written: Tensor, other: Tensor, may_be_the_same: bool) -> bool:
    """Whether writing the one may change the other; not if an elementwise kernel reads just what it writes."""
    if other.device.type == "cpu" or not written.numel() or not other.numel():
        return False
    start, end = _address_range(written)
    other_start, other_end = _address_range(other)
    if start >= other_end or other_start >= end:
        return False
    same = (written.dtype, start, written.shape, written.stride()) == (
        *(other.dtype, other_start, other.shape, other.stride()),
    )
    return not (same and may_be_the_same)


def _address_range(tensor: Tensor) -> tuple[int, int]:
    start = tensor.data_ptr()
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return start, start + (last + 1) * tensor.itemsize


def _on_device(index: int) -> contextlib.AbstractContextManager[object]:
    return contextlib.nullcontext() if index == _C._current_device() else _C.DeviceGuard(index)


def _forms(functional: OpOverload) -> list[OpOverload]:
    """Returns the operator itself, in place, and with `out`."""
    name, overload = functional._schema.name.partition("::")[2], functional._overloadname
    forms = [functional]
    if in_place := getattr(torch.ops.aten, f"{name}_", None):
        forms += [getattr(in_place, overload)] if overload in in_place.overloads() else []
    packet = functional.overloadpacket
    arguments = [(argument.name, str(argument.type)) for argument in functional._schema.arguments]
    for other in (getattr(packet, other) for other in packet.overloads()):
        *rest, last = other._schema.arguments
        if _is_written(last) and last.kwarg_only and [(a.name, str(a.type)) for a in rest] == arguments:
            forms.append(other)
    return forms


_library: torch.library.Library | None = None  # freed, it takes its kernels along


def register() -> dict[str, Operator]:
    """Registers the kernels of all families under the key of the device's name. Returns them by operator."""
    global _library
    unregister()
    _library = torch.library.Library("aten", "IMPL")
    operators: dict[str, Operator] = {}
    for family, names in FAMILIES.items():
        for name in names:
            base, _, overload = name.partition(".")
            functional: OpOverload = getattr(getattr(torch.ops.aten, base), overload or "default")
            for form in _forms(functional):
                operators[form.name()] = Operator(name, family, functional, form)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Warning only once for all operators")  # that kernels are replaced
        for operator in operators.values():
            _library.impl(operator.form, operator, backend.dispatch_key(), with_keyset=True, allow_override=True)
    return operators


def unregister() -> None:
    """Leaves the operators to the kernels that they had before."""
    global _library
    if _library is not None:
        _library._destroy()
        _library = None
