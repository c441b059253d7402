"""Statements that compute an element from many: reductions, scans, sorts, products."""

from __future__ import annotations

import math

import torch

from tools.compile_fuzz.builder import Builder, Value
from tools.compile_fuzz.table import statement


def axes(b: Builder, x: Value) -> tuple[str, int]:
    """Some of its dimensions as an argument, and how many elements they have."""
    if x.dim == 0 or b.random.random() < 0.15:
        return "", max(x.tensor.numel(), 1)
    chosen = b.random.sample(range(x.dim), b.random.randint(1, x.dim))
    keep = b.random.choice(("", ", keepdim=True"))
    count = math.prod(x.shape[axis] for axis in chosen)
    text = str(chosen[0]) if len(chosen) == 1 else f"({', '.join(map(str, chosen))})"
    return text + keep, max(count, 1)


@statement(12)
def reduction(b: Builder) -> bool:
    x = b.pick()
    if x is None:
        return False
    axis, count = axes(b, x)
    kind = b.random.randrange(6)
    if kind < 2:
        comma = ", " if axis else ""
        dtype = f"{comma}dtype={b.random.choice((torch.float64, torch.float32, torch.int64))}"
        if not x.is_exact() or x.special or b.random.random() < 0.7:
            dtype = ""
        return b.define(f"{x.name}.sum({axis}{dtype})", (x,), x.bound * count, x.error * count) is not None
    if kind < 4:
        function = b.random.choice(("amax", "amin"))
        return b.define(f"{x.name}.{function}({axis})", (x,), x.bound, x.error) is not None
    if not x.is_exact():
        return False
    function = b.random.choice(("any", "all", "count_nonzero"))
    axis = axis.replace(", keepdim=True", "") if function == "count_nonzero" else axis
    return b.define(f"{x.name}.{function}({axis})", (x,), count) is not None


@statement(8)
def reduction_of_one_axis(b: Builder) -> bool:
    x = b.exact(lambda x: x.dim > 0)
    if x is None:
        return False
    axis = b.axis(x)
    size = max(x.shape[axis], 1)
    keep = b.random.choice(("", ", keepdim=True"))
    small = f"{x.name}.clamp(-1, 1)" if x.dtype not in (torch.uint8, torch.bool) else f"{x.name}.clamp(0, 1)"
    calls = (
        (f"{x.name}.argmax({axis}{keep})", size),
        (f"{x.name}.argmin({axis}{keep})", size),
        (f"{x.name}.max({axis}{keep})[0]", x.bound),
        (f"{x.name}.min({axis}{keep})[1]", size),
        (f"{x.name}.max({axis}{keep})[1]", size),
        (f"{small}.prod({axis}{keep})", 1),
        (f"{x.name}.argmax()", x.tensor.numel()),
        (f"{x.name}.detach().median({axis}{keep})[0]", x.bound),
        (f"{x.name}.detach().kthvalue({b.random.randint(1, size)}, {axis}{keep})[0]", x.bound),
    )
    expression, bound = b.random.choice(calls)
    return b.define(expression, (x,), bound) is not None


@statement(6)
def inexact_reduction(b: Builder) -> bool:
    x = b.pick(lambda x: x.floating and x.dim > 0 and x.error <= 0.1 and x.bound < 1e3)
    if x is None:
        return False
    axis, count = axes(b, x)
    comma = ", " if axis else ""
    one = b.axis(x)
    calls = (
        (f"{x.name}.mean({axis})", x.bound, 1.0),
        (f"{x.name}.var({axis}{comma}correction=0)", x.bound**2, 4 * x.bound),
        (f"{x.name}.logsumexp({one})", x.bound + 12, 1.0),
        (f"{x.name}.softmax({one})", 1.0, 2.0),
        (f"{x.name}.log_softmax({one})", 2 * x.bound + 12, 2.0),
        (f"{x.name}.square().sum({axis})", x.bound**2 * count, 2 * x.bound * count),
        (f"F.layer_norm({x.name}, {x.name}.shape[-1:], eps=1.0)", x.bound * 2, 4 * x.bound + 4),
        (f"F.normalize({x.name}, dim={one}, eps=1.0)", 1.0, 4.0),
    )
    expression, bound, slope = b.random.choice(calls)
    return b.define(expression, (x,), max(bound, 1), x.error * slope, rounds=True) is not None


@statement(9)
def scan(b: Builder) -> bool:
    x = b.exact(lambda x: x.dim > 0)
    if x is None:
        return False
    axis = b.axis(x)
    size = max(x.shape[axis], 1)
    small = f"{x.name}.clamp(-1, 1)" if x.dtype not in (torch.uint8, torch.bool) else f"{x.name}.clamp(0, 1)"
    calls = (
        (f"{x.name}.cumsum({axis})", x.bound * size, False),
        (f"{x.name}.cumsum({axis})", x.bound * size, False),
        (f"{small}.cumprod({axis})", 1, False),
        (f"{x.name}.cummax({axis})[0]", x.bound, False),
        (f"{x.name}.cummin({axis})[0]", x.bound, False),
        (f"{x.name}.diff(dim={axis})", 2 * x.bound, False),
        (f"{x.name}.float().logcumsumexp({axis})", x.bound + 12, True),
    )
    expression, bound, rounds = b.random.choice(calls)
    if rounds and x.bound > 1e3:
        return False
    return b.define(expression, (x,), bound, rounds=rounds) is not None


@statement(7)
def order(b: Builder) -> bool:
    x = b.exact(lambda x: x.dim > 0)
    if x is None:
        return False
    axis = b.axis(x)
    size = max(x.shape[axis], 1)
    down = b.random.choice(("", ", descending=True"))
    calls = (
        (f"torch.sort({x.name}, dim={axis}{down}, stable=True)[0]", x.bound),
        (f"torch.sort({x.name}, dim={axis}{down}, stable=True)[1]", size),
        (f"torch.argsort({x.name}, dim={axis}{down}, stable=True)", size),
        (f"{x.name}.detach().topk({b.random.randint(1, size)}, {axis}, largest={not down})[0]", x.bound),
        (f"torch.searchsorted({x.name}.contiguous().sort()[0], {x.name}.contiguous())", x.shape[-1]),
        (f"torch.bucketize({x.name}, torch.arange(-2, 3, device={x.name}.device).to({x.dtype}))", 5),
    )
    expression, bound = b.random.choice(calls)
    if x.special and ("searchsorted" in expression or "bucketize" in expression):
        return False
    return b.define(expression, (x,), max(bound, 1)) is not None


@statement(5)
def product(b: Builder) -> bool:
    x = b.pick(lambda x: x.floating and x.dim > 0 and not x.special)
    y = b.pick(lambda y: x is not None and y.dtype == x.dtype and y.dim > 0 and not y.special)
    if x is None or y is None:
        return False
    inner = x.shape[-1]
    other = next(
        (name for name, size in ((y.name, y.shape[max(-2, -y.dim)]), (f"{y.name}.mT", y.shape[-1])) if size == inner),
        None,
    )
    if other is None:
        other, y = f"{x.name}.mT", x
    bound = x.bound * y.bound * max(inner, 1)
    error = (x.error * y.bound + y.error * x.bound + x.error * y.error) * max(inner, 1)
    expression = b.random.choice((f"{x.name} @ {other}", f"({x.name} @ {other}).relu()"))
    return b.define(expression, (x, y), bound, error) is not None
