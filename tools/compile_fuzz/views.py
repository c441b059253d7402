"""Statements that move elements: views of a value, copies of it in another arrangement, other dtypes."""

from __future__ import annotations

import torch

from tools.compile_fuzz.builder import DTYPES, Builder, Value, limit
from tools.compile_fuzz.table import statement


def data(b: Builder, x: Value | None, expression: str) -> bool:
    """Elements of x in another place, and no others."""
    return x is not None and b.define(expression, (x,), x.bound, x.error, fresh=x.fresh) is not None


@statement(14)
def slice_(b: Builder) -> bool:
    x = b.pick(lambda x: x.dim > 0 and x.tensor.numel() > 1)
    if x is None:
        return False
    parts = []
    for size in x.shape[: b.random.randint(1, x.dim)]:
        kind = b.random.randrange(5)
        start = b.random.randint(0, max(size - 1, 0))
        if kind == 0:
            parts.append(":")
        elif kind == 1:
            parts.append(f"{start}:")
        elif kind == 2:
            parts.append(f":{b.random.choice((-1, size // 2 + 1, size))}")
        elif kind == 3:
            parts.append(f"{min(start, 1)}::{b.random.choice((2, 3))}")
        else:
            parts.append(str(b.random.choice((start, -1))))
    return data(b, x, f"{x.name}[{', '.join(parts)}]")


@statement(12)
def view(b: Builder) -> bool:
    x = b.pick(lambda x: x.dim > 0)
    if x is None:
        return False
    axis, other = b.axis(x), b.axis(x)
    size = x.shape[axis]
    factor = next((factor for factor in (2, 3, 4, 5) if size and size % factor == 0), 1)
    calls = (
        f"transpose({axis}, {other})",
        f"permute({', '.join(map(str, b.random.sample(range(x.dim), x.dim)))})",
        f"unsqueeze({axis})",
        f"squeeze({axis})",
        "squeeze()",
        "flatten()",
        "view(-1)",
        f"unflatten({axis}, ({factor}, -1))",
        f"diagonal({b.random.choice((0, 1, -1))})",
        f"unfold({axis}, {b.random.randint(1, max(min(size, 4), 1))}, {b.random.randint(1, 3)})",
        f"movedim({axis}, {other})",
        f"narrow({axis}, {min(1, size)}, {max(size - 1, 0)})",
        f"select({axis}, {max(size - 1, 0)})",
        f"unbind({axis})[{max(size - 1, 0)}]",
        f"chunk(2, {axis})[-1]",
        f"split({max(size // 2, 1)}, {axis})[0]",
        f"expand({b.random.choice((2, 3))}, {', '.join('-1' for _ in x.shape)})",
        "detach()",
        "view_as(" + x.name + ")",
        "mT",
    )
    return data(b, x, f"{x.name}.{b.random.choice(calls)}")


@statement(3)
def as_strided(b: Builder) -> bool:
    x = b.pick(lambda x: x.dim > 0 and x.tensor.numel() > 3)
    if x is None or not x.tensor.is_contiguous():
        return False
    count = x.tensor.numel()
    columns, step, row = b.random.randint(1, 4), b.random.choice((1, 1, 2, 0)), b.random.randint(1, 5)
    rows = max((count - 1 - (columns - 1) * step) // row, 0)
    return data(b, x, f"{x.name}.as_strided(({min(rows, 8)}, {columns}), ({row}, {step}))")


@statement(3)
def view_dtype(b: Builder) -> bool:
    x = b.pick(lambda x: x.fresh and x.dtype != torch.bool)
    if x is None:
        return False
    dtype = b.random.choice((torch.int32, torch.int16, torch.int64, torch.uint8, torch.int8))
    return b.define(f"{x.name}.view({dtype})", (x,), limit(dtype) + 1, fresh=False) is not None


@statement(8)
def rearrange(b: Builder) -> bool:
    x = b.pick(lambda x: x.dim > 0)
    if x is None:
        return False
    axis = b.axis(x)
    calls = (
        "flip({axis})",
        "roll({shift}, {axis})",
        "roll({shift})",
        "clone()",
        "contiguous()",
        "repeat_interleave(2, {axis})",
        "repeat(2, {ones})",
        "rot90(1, (0, -1))",
        "tril({shift})",
        "triu({shift})",
        "t().contiguous()",
    )
    call = b.random.choice(calls).format(axis=axis, shift=b.number(), ones=", ".join("1" for _ in x.shape))
    return data(b, x, f"{x.name}.{call}")


@statement(8)
def join(b: Builder) -> bool:
    x = b.pick()
    if x is None:
        return False
    ys = [b.pick(lambda y: y.dim == x.dim and y.dtype == x.dtype) or x for _ in range(b.random.randint(1, 2))]
    function = b.random.choice(("cat", "cat", "stack", "hstack"))
    axis = "" if function == "hstack" or x.dim == 0 else f", {b.axis(x)}"
    names = ", ".join(value.name for value in (x, *ys))
    bound, error = max(value.bound for value in (x, *ys)), max(value.error for value in (x, *ys))
    return b.define(f"torch.{function}(({names}){axis})", (x, *ys), bound, error) is not None


@statement(5)
def pad(b: Builder) -> bool:
    x = b.pick(lambda x: x.dim > 0)
    if x is None:
        return False
    kind = b.random.random()
    if kind < 0.5:
        fill = b.random.choice((0, 1, 2)) if x.dtype != torch.bool else 0
        sizes = ", ".join(str(b.random.choice((0, 1, 2, -1))) for _ in range(2 * b.random.randint(1, min(x.dim, 2))))
        expression = f"F.pad({x.name}, ({sizes}), value={fill})"
    else:
        mode = b.random.choice(("reflect", "replicate", "circular"))
        expression = f"F.pad({x.name}, ({b.random.randint(0, 2)}, 1), mode={mode!r})"
    return b.define(expression, (x,), max(x.bound, 2), x.error) is not None


@statement(14)
def convert(b: Builder) -> bool:
    dtype = b.random.choice(DTYPES)
    if dtype.is_floating_point:
        x = b.pick()
        if x is None:
            return False
        return b.define(f"{x.name}.to({dtype})", (x,), x.bound, x.error) is not None
    x = b.exact(lambda x: not x.floating or (not x.special and x.bound <= limit(dtype)) or dtype == torch.bool)
    if x is None or (x.special and dtype != torch.bool):
        return False
    name = f"{x.name}.abs()" if dtype == torch.uint8 and x.floating else x.name
    wraps = not x.floating and (x.bound > limit(dtype) or dtype == torch.uint8)
    return b.define(f"{name}.to({dtype})", (x,), limit(dtype) + 1 if wraps else x.bound) is not None
