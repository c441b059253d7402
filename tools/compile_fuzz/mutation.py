"""Statements that write into a value, often a view, and that make new ones to write into."""

from __future__ import annotations

from collections.abc import Callable

import torch

from tools.compile_fuzz.builder import FLOATS, SIGNED, Builder, Value
from tools.compile_fuzz.indexing import index
from tools.compile_fuzz.table import statement


def target(b: Builder) -> Value | None:
    """What may be written, often a view."""
    return b.pick(
        lambda x: not any(size > 1 and step == 0 for size, step in zip(x.shape, x.tensor.stride(), strict=True))
    )


@statement(16)
def write(b: Builder) -> bool:
    x = target(b)
    y = None if x is None else b.pick(lambda y: y.storage != x.storage and torch.can_cast(y.dtype, x.dtype))
    if x is None or y is None or (not x.floating and not y.is_exact()):
        return False
    bound = max(x.bound, y.bound)
    kind = b.random.randrange(10)
    if kind == 0:
        return b.mutate(x, f"{x.name}.add_({y.name})", (y,), x.bound + y.bound, x.error + y.error) is not None
    if kind == 1:
        error = x.error * y.bound + y.error * x.bound + x.error * y.error
        return b.mutate(x, f"{x.name}.mul_({y.name})", (y,), x.bound * y.bound, error) is not None
    if kind == 2:
        return b.mutate(x, f"{x.name}.copy_({y.name})", (y,), bound, max(x.error, y.error)) is not None
    if kind == 3:
        return (
            b.mutate(
                x, f"{x.name}.fill_({abs(b.number()) if x.dtype != torch.bool else 1})", (), max(x.bound, 3), x.error
            )
            is not None
        )
    if kind == 4:
        return b.mutate(x, f"{x.name}.zero_()", (), x.bound, x.error) is not None
    if kind == 5 and x.dim:
        line = f"{x.name}[{b.random.choice(('0', '1:', '::2', '...', '-1'))}] = {y.name}"
        return b.mutate(x, line, (y,), bound, max(x.error, y.error)) is not None
    if kind == 6:
        return (
            b.mutate(x, f"{x.name}.sub_({y.name}, alpha=2)", (y,), x.bound + 2 * y.bound, x.error + 2 * y.error)
            is not None
        )
    if kind == 7:
        return b.mutate(x, f"{x.name}.clamp_({b.random.choice((0, 1))}, 2)", (), max(x.bound, 2), x.error) is not None
    mask = b.other(x, lambda m: m.dtype == torch.bool and m.storage != x.storage)
    if mask is None:
        return False
    if kind == 8:
        return b.mutate(x, f"{x.name}.masked_fill_({mask.name}, 1)", (), max(x.bound, 1), x.error) is not None
    line = f"{x.name}[{mask.name}] = 1"
    return mask.shape == x.shape and b.mutate(x, line, (), max(x.bound, 1), x.error) is not None


@statement(5)
def write_scattered(b: Builder) -> bool:
    x = target(b)
    if x is None or x.dim == 0 or not x.is_exact():
        return False
    fits: Callable[[Value], bool] = lambda y: y.dtype == x.dtype and y.is_exact() and y.storage != x.storage  # noqa: E731
    y = b.pick(lambda y: fits(y) and y.dim == x.dim)
    if y is None:
        return False
    axis = b.axis(x)
    kind = b.random.randrange(3)
    bound = x.bound + y.bound * max(y.tensor.numel(), 1)
    if kind == 0:
        found = index(b, x.shape[axis], lambda i: i.shape == y.shape and i.storage != x.storage)
        line = "{x}.scatter_add_({axis}, {i}, {y})"
    elif kind == 1:
        found = index(b, x.shape[axis], lambda i: i.shape == (y.shape[axis],) and i.storage != x.storage)
        line = "{x}.index_add_({axis}, {i}, {y})"
    else:
        found = index(b, x.shape[0], lambda i: i.shape == y.shape[:1] and i.storage != x.storage, negative=True)
        line = "{x}.index_put_(({i},), {y}, accumulate=True)"
    if found is None:
        return False
    return b.mutate(x, line.format(x=x.name, axis=axis, i=found[0], y=y.name), (y,), bound) is not None


@statement(2)
def create(b: Builder) -> bool:
    x = b.pick(lambda x: x.dim > 0)
    if x is None:
        return False
    dtype = b.random.choice((*FLOATS[:2], *SIGNED[:2]))
    calls = (
        f"torch.zeros_like({x.name})",
        f"torch.arange({x.shape[-1]}, device={x.name}.device)",
        f"torch.full(({x.shape[-1]},), 2, dtype={dtype}, device={x.name}.device)",
        f"torch.ones({x.name}.shape, dtype={dtype}, device={x.name}.device)",
        f"{x.name}.new_zeros({x.shape})",
        f"torch.eye({x.shape[-1]}, device={x.name}.device)",
    )
    return b.define(b.random.choice(calls), (), max(x.shape[-1], 2)) is not None
