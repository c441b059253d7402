"""Statements that gather and scatter by indices."""

from __future__ import annotations

from collections.abc import Callable

from tools.compile_fuzz.builder import Builder, Value, anything
from tools.compile_fuzz.table import statement


def index(
    b: Builder, size: int, condition: Callable[[Value], bool], *, negative: bool = False
) -> tuple[str, Value] | None:
    """An expression for int64 numbers in [0, size), or in [-size, size)."""
    x = b.exact(lambda x: condition(x) and not x.special and x.bound < 2**62 and x.tensor.numel() < 2000)
    if x is None or size == 0:
        return None
    if negative:
        return f"({x.name}.long() % {2 * size} - {size})", x
    return f"({x.name}.long() % {size})", x


@statement(10)
def gather(b: Builder) -> bool:
    x = b.pick(lambda x: x.dim > 0)
    if x is None:
        return False
    axis = b.axis(x)
    size = x.shape[axis]
    kind = b.random.randrange(4)
    if kind == 0:
        found = index(b, size, lambda i: i.dim == x.dim)
        expression = "torch.gather({x}, {axis}, {i})"
    elif kind == 1:
        found = index(b, size, lambda i: i.dim == 1)
        expression = "{x}.index_select({axis}, {i})"
    elif kind == 2:
        found = index(b, x.shape[0], lambda i: i.dim <= 2, negative=True)
        expression = "{x}[{i}]"
    else:
        found = index(b, x.tensor.numel(), anything)
        expression = "{x}.take({i})"
    if found is None:
        return False
    text = expression.format(x=x.name, axis=axis, i=found[0])
    return b.define(text, (x,), x.bound, x.error) is not None


@statement(8)
def scatter(b: Builder) -> bool:
    """Additions to elements, several of them to the same; only whole numbers, whose sum has no order."""
    x = b.exact(lambda x: x.dim > 0)
    y = b.pick(lambda y: x is not None and y.dtype == x.dtype and y.is_exact() and y.dim == x.dim)
    if x is None or y is None:
        return False
    axis = b.axis(x)
    size = x.shape[axis]
    kind = b.random.randrange(4)
    bound = x.bound + y.bound * max(y.tensor.numel(), 1)
    if kind == 0:
        found = index(b, size, lambda i: i.shape == y.shape)
        expression = "{x}.scatter_add({axis}, {i}, {y})"
    elif kind == 1:
        found = index(b, size, lambda i: i.shape == y.shape)
        expression = "{x}.scatter_reduce({axis}, {i}, {y}, " + b.random.choice(("'amax'", "'amin'", "'sum'")) + ")"
        if "am" in expression and b.training:
            return False  # the gradient of ties
    elif kind == 2:
        found = index(b, size, lambda i: i.shape == (y.shape[axis],))
        expression = "{x}.index_add({axis}, {i}, {y})"
    else:
        found = index(b, x.shape[0], lambda i: i.shape == y.shape[:1], negative=True)
        expression = "{x}.index_put(({i},), {y}, accumulate=True)"
    if found is None:
        return False
    return b.define(expression.format(x=x.name, axis=axis, i=found[0], y=y.name), (x, y), bound) is not None


@statement(4)
def scatter_distinct(b: Builder) -> bool:
    """Writes to elements, each to another."""
    x = b.pick(lambda x: x.dim > 0)
    y = b.pick(lambda y: x is not None and y.dtype == x.dtype and y.dim == x.dim)
    if x is None or y is None:
        return False
    axis = b.axis(x)
    size = min(y.shape[axis], x.shape[axis])
    i = f"torch.arange({size}, device={x.name}.device).flip(0)"
    part = f"{y.name}.narrow({axis}, 0, {size})"
    calls = (
        f"{x.name}.index_copy({axis}, {i}, {part})",
        f"{x.name}.index_put(({i},), {y.name}[:{size}])",
        f"torch.slice_scatter({x.name}, {part}, {axis}, 0, {size})",
        f"torch.select_scatter({x.name}, {y.name}.select({axis}, 0), {axis}, -1)",
        f"torch.diagonal_scatter({x.name}, {x.name}.diagonal() * 2)",
    )
    return b.define(b.random.choice(calls), (x, y), max(2 * x.bound, y.bound), max(2 * x.error, y.error)) is not None
