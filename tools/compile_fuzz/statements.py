"""What programs are made of. To add a statement: a function that writes it, decorated with its weight.

A statement picks operands among the values in scope and defines new ones, or writes into one, with bounds for elements
and errors: see builder.py. It returns False, having written nothing, if nothing in scope fits.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import torch

from tools.compile_fuzz.builder import DTYPES, FLOATS, SIGNED, Builder, Refused, Value, anything, limit
from tools.compile_fuzz.comparison import observe
from tools.compile_fuzz.program import CALLS, Program

Statement = Callable[[Builder], bool]
_STATEMENTS: dict[Statement, int] = {}
FEWEST = 5  # lines of a program


def statement(weight: int) -> Callable[[Statement], Statement]:
    def register(function: Statement) -> Statement:
        _STATEMENTS[function] = weight
        return function

    return register


def generate(seed: int) -> Program:
    """The program of a seed: the first attempt that runs on the CPU, backward too, with the data of every call."""
    for attempt in itertools.count():
        try:
            program = _attempt(Builder(seed, attempt))
            for call in range(CALLS):
                observe(program.function(), program.arguments(call, "cpu"), program.training)
        except (Refused, RuntimeError, IndexError):
            continue
        return program
    raise AssertionError("unreachable")


def _attempt(b: Builder) -> Program:
    functions = list(_STATEMENTS)
    # Each program has its own taste, so that the statements it likes meet.
    weights = [weight * b.random.choice((0, 1, 1, 5)) for weight in _STATEMENTS.values()]
    count = b.random.randint(FEWEST, 15)
    for _ in range(20 * count):
        if len(b.lines) >= count or not any(weights):
            break
        chosen = b.random.choices(functions, weights)[0]
        if chosen(b):
            b.features.append(chosen.__name__)
    if len(b.lines) < FEWEST:
        raise Refused("too little fits")
    return b.program()


def number(b: Builder) -> int:
    return b.random.choice((-3, -2, -1, 0, 1, 2, 3))


# Views ----------------------------------------------------------------------------------------------------------------


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


# Copies ---------------------------------------------------------------------------------------------------------------


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
    call = b.random.choice(calls).format(axis=axis, shift=number(b), ones=", ".join("1" for _ in x.shape))
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


# Elementwise ----------------------------------------------------------------------------------------------------------


@statement(16)
def arithmetic(b: Builder) -> bool:
    x = b.pick()
    y = None if x is None else b.other(x)
    if x is None or y is None:
        return False
    operation = b.random.choice(("{} + {}", "{} - {}", "{} * {}", "torch.maximum({}, {})", "torch.minimum({}, {})"))
    if "*" in operation:
        if (x.special and not y.tensor.any()) or (y.special and not x.tensor.any()):
            return False
        bound, error = x.bound * y.bound, x.error * y.bound + y.error * x.bound + x.error * y.error
    elif "m" in operation:
        bound, error = max(x.bound, y.bound), max(x.error, y.error)
    else:
        bound, error = x.bound + y.bound, x.error + y.error
    return b.define(operation.format(x.name, y.name), (x, y), bound, error) is not None


@statement(8)
def with_number(b: Builder) -> bool:
    x = b.pick()
    if x is None:
        return False
    k = number(b)
    if k == 0 and x.special:
        return False
    chosen = b.random.randrange(7)
    if chosen == 0:
        return b.define(f"{x.name} + {k}", (x,), x.bound + 3, x.error) is not None
    if chosen == 1:
        return b.define(f"{x.name} * {k}", (x,), x.bound * 3, x.error * 3) is not None
    if chosen == 2:
        return b.define(f"{k} - {x.name}", (x,), x.bound + 3, x.error) is not None
    if chosen == 3:
        return b.define(f"{x.name}.clamp({min(k, 0)}, 2)", (x,), 3, min(x.error, 3)) is not None
    if chosen == 4:
        y = b.other(x)
        if y is None:
            return False
        bound, error = x.bound + 3 * y.bound, x.error + 3 * y.error
        return b.define(f"torch.add({x.name}, {y.name}, alpha={k})", (x, y), bound, error) is not None
    if chosen == 5:
        return b.define(f"{x.name}.square()", (x,), x.bound**2, (2 * x.bound + x.error) * x.error) is not None
    return b.define(f"-{x.name}", (x,), x.bound + 1, x.error) is not None


@statement(6)
def unary(b: Builder) -> bool:
    x = b.exact()
    if x is None:
        return False
    functions = ["abs()", "relu()", "neg()", "sgn()", "positive()", "long()" if not x.special else "sign()"]
    if x.floating:
        functions += [
            "trunc()",
            "round()",
            "floor()",
            "ceil()",
            "isnan()",
            "isinf()",
            "isfinite()",
            "nan_to_num(1.0, 2.0, -2.0)",
        ]
    else:
        functions += ["bitwise_not()"]
    call = b.random.choice(functions)
    return b.define(f"{x.name}.{call}", (x,), max(x.bound + 1, 2)) is not None


@statement(9)
def integer_arithmetic(b: Builder) -> bool:
    x = b.pick(lambda x: not x.floating and x.dtype != torch.bool)
    y = None if x is None else b.other(x, lambda y: not y.floating and y.dtype != torch.bool)
    if x is None or y is None:
        return False
    divisor = f"({y.name} % 3 * 7 - 9)"  # neither 0 nor -1, of which the smallest number is no multiple
    operations = (
        f"{x.name} // {divisor}",
        f"{x.name} % {divisor}",
        f"torch.fmod({x.name}, {divisor})",
        f"torch.div({x.name}, {divisor}, rounding_mode='trunc')",
        f"{x.name} // {b.random.choice((-7, -2, 2, 3, 4, 16))}",
        f"{x.name} % {b.random.choice((-7, -2, 2, 3, 4, 16))}",
        f"{x.name} & {y.name}",
        f"{x.name} | {y.name}",
        f"{x.name} ^ {y.name}",
        f"{x.name} << ({y.name} & 7)",
        f"{x.name} >> ({y.name} & 7)",
        f"torch.gcd({x.name}, {y.name})",
    )
    dtype = torch.promote_types(x.dtype, y.dtype)
    return b.define(b.random.choice(operations), (x, y), limit(dtype) + 1) is not None


@statement(4)
def float_remainder(b: Builder) -> bool:
    x = b.exact(lambda x: x.floating)
    y = None if x is None else b.other(x, lambda y: y.is_exact() and y.floating)
    if x is None or y is None:
        return False
    divisor = f"({y.name} * 2 + 1)" if b.random.random() < 0.5 else str(b.random.choice((-3, 2, 3)))
    if x.special or y.special:
        return False
    bound = max(x.bound, 2 * y.bound + 1)
    if y.dtype in (torch.float16, torch.bfloat16) and y.bound > 100:
        return False
    name = b.random.choice((f"{x.name} % {divisor}", f"{x.name} // {divisor}", f"torch.fmod({x.name}, {divisor})"))
    return b.define(name, (x, y), bound + 1) is not None


@statement(8)
def comparison(b: Builder) -> bool:
    x = b.exact()
    y = None if x is None else b.other(x, Value.is_exact)
    if x is None or y is None:
        return False
    operator = b.random.choice(("<", "<=", ">", ">=", "==", "!="))
    right = y.name if b.random.random() < 0.7 else str(number(b))
    return b.define(f"{x.name} {operator} {right}", (x, y), 1) is not None


@statement(3)
def logic(b: Builder) -> bool:
    x = b.exact()
    y = None if x is None else b.other(x, Value.is_exact)
    if x is None or y is None:
        return False
    function = b.random.choice(("logical_and", "logical_or", "logical_xor"))
    return b.define(f"torch.{function}({x.name}, {y.name})", (x, y), 1) is not None


@statement(8)
def where(b: Builder) -> bool:
    condition = b.pick(lambda value: value.dtype == torch.bool)
    x = None if condition is None else b.other(condition)
    y = None if x is None else b.other(x)
    if condition is None or x is None or y is None:
        return False
    if b.random.random() < 0.3:
        expression = f"{x.name}.masked_fill({condition.name}, {abs(number(b))})"
        return b.define(expression, (condition, x), max(x.bound, 3), x.error) is not None
    other = y.name if b.random.random() < 0.7 else str(abs(number(b)))
    bound, error = max(x.bound, y.bound, 3), max(x.error, y.error)
    return b.define(f"torch.where({condition.name}, {x.name}, {other})", (condition, x, y), bound, error) is not None


@statement(7)
def smooth(b: Builder) -> bool:
    """Functions that round, of a slope of at most 2 where they are used."""
    x = b.pick(lambda x: x.floating and x.error <= 0.1)
    if x is None:
        return False
    functions = {
        "torch.sin({})": 1.0,
        "torch.cos({})": 1.0,
        "torch.tanh({})": 1.0,
        "torch.sigmoid({})": 1.0,
        "torch.exp(-{}.abs())": 1.0,
        "torch.log1p({}.abs())": 30.0,
        "torch.sqrt({}.abs() + 1)": x.bound + 1,
        "torch.rsqrt({}.abs() + 1)": 1.0,
        "(1 / ({}.abs() + 1))": 1.0,
        "({0} / ({0}.abs() + 2))": 1.0,
        "torch.atan({})": 2.0,
        "torch.erf({})": 1.0,
        "F.gelu({})": x.bound,
        "F.silu({})": x.bound,
        "F.softplus({})": x.bound + 1,
        "F.leaky_relu({}, 0.25)": x.bound,
        "F.hardswish({})": x.bound,
        "torch.true_divide({}, 3)": x.bound,
    }
    function, bound = b.random.choice(list(functions.items()))
    return b.define(function.format(x.name), (x,), max(bound, 1), 2 * x.error, rounds=True) is not None


# Reductions -----------------------------------------------------------------------------------------------------------


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


# Indexing -------------------------------------------------------------------------------------------------------------


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


# Mutation -------------------------------------------------------------------------------------------------------------


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
                x, f"{x.name}.fill_({abs(number(b)) if x.dtype != torch.bool else 1})", (), max(x.bound, 3), x.error
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
