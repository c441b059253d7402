"""Statements that compute each element from those in its place."""

from __future__ import annotations

import torch

from tools.compile_fuzz.builder import Builder, Value, limit
from tools.compile_fuzz.table import statement


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
    k = b.number()
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
    right = y.name if b.random.random() < 0.7 else str(b.number())
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
        expression = f"{x.name}.masked_fill({condition.name}, {abs(b.number())})"
        return b.define(expression, (condition, x), max(x.bound, 3), x.error) is not None
    other = y.name if b.random.random() < 0.7 else str(abs(b.number()))
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
