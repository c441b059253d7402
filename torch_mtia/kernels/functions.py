"""Functions of elements, for the kernel in pointwise.py. Numbers arrive as elements too."""

from __future__ import annotations

import triton
import triton.language as tl

SQRT_HALF = tl.constexpr(0.7071067811865476)
INVERSE_SQRT_TAU = tl.constexpr(0.3989422804014327)  # 1 / sqrt(2 pi)
GELU_SCALE = tl.constexpr(0.7978845608028654)  # sqrt(2 / pi)
GELU_CUBIC = tl.constexpr(0.044715)
LOG10_E = tl.constexpr(0.4342944819032518)


@triton.jit
def identity(x):
    return x


@triton.jit
def to_int32(x):
    """On the way to narrower types, too, as compilers of C convert."""
    return x.to(tl.int32)


@triton.jit
def to_int64(x):
    """On the way to uint32, too."""
    return x.to(tl.int64)


@triton.jit
def add(x, y, alpha):
    return x + alpha * y


@triton.jit
def plus(x, y):
    return x + y


@triton.jit
def sub(x, y, alpha):
    return x - alpha * y


@triton.jit
def mul(x, y):
    return x * y


@triton.jit
def div(x, y):
    return tl.div_rn(*tl.broadcast(x, y))


@triton.jit
def maximum(x, y):
    return tl.maximum(x, y, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def minimum(x, y):
    return tl.minimum(x, y, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def where(condition, x, y):
    return tl.where(condition != 0, x, y)


@triton.jit
def eq(x, y):
    return x == y


@triton.jit
def ne(x, y):
    return x != y


@triton.jit
def lt(x, y):
    return x < y


@triton.jit
def le(x, y):
    return x <= y


@triton.jit
def gt(x, y):
    return x > y


@triton.jit
def ge(x, y):
    return x >= y


@triton.jit
def logical_not(x):
    return x == 0


@triton.jit
def bitwise_and(x, y):
    return x & y


@triton.jit
def bitwise_or(x, y):
    return x | y


@triton.jit
def bitwise_xor(x, y):
    return x ^ y


@triton.jit
def neg(x):
    return x * -1  # -x is 0 - x, which makes a zero without a sign of one without


@triton.jit
def abs(x):
    return tl.abs(x)


@triton.jit
def sign(x):
    return (x > 0).to(tl.int32) - (x < 0).to(tl.int32)


@triton.jit
def relu(x):
    return tl.where(x < 0, 0, x)


@triton.jit
def leaky_relu(x, slope):
    return tl.where(x > 0, x, x * slope)


@triton.jit
def floor(x):
    return tl.floor(x)


@triton.jit
def ceil(x):
    return tl.ceil(x)


@triton.jit
def trunc(x):
    return tl.where(x < 0, tl.ceil(x), tl.floor(x))


@triton.jit
def sqrt(x):
    return tl.sqrt_rn(x)


@triton.jit
def rsqrt(x):
    return tl.div_rn(1.0, tl.sqrt_rn(x))


@triton.jit
def reciprocal(x):
    return tl.div_rn(1.0, x)


@triton.jit
def exp(x):
    return tl.exp(x)


@triton.jit
def exp2(x):
    return tl.exp2(x)


@triton.jit
def log(x):
    return tl.log(x)


@triton.jit
def log2(x):
    return tl.log2(x)


@triton.jit
def log10(x):
    return tl.log(x) * LOG10_E


@triton.jit
def sin(x):
    return tl.sin(x)


@triton.jit
def cos(x):
    return tl.cos(x)


@triton.jit
def tanh(x):
    """Near 0, where the quotient would cancel, the series."""
    square = x * x
    series = x * (1 + square * (-1 / 3 + square * (2 / 15 + square * (-17 / 315 + square * (62 / 2835)))))
    decay = tl.exp(-2 * tl.abs(x))
    quotient = (1 - decay) / (1 + decay)
    return tl.where(tl.abs(x) < 0.25, series, tl.where(x < 0, -quotient, quotient))


@triton.jit
def erf(x):
    return tl.erf(x)


@triton.jit
def sigmoid(x):
    return 1 / (1 + tl.exp(-x))


@triton.jit
def silu(x):
    return x / (1 + tl.exp(-x))


@triton.jit
def gelu(x):
    return 0.5 * x * (1 + tl.erf(x * SQRT_HALF))


@triton.jit
def gelu_tanh(x):
    return 0.5 * x * (1 + tanh(GELU_SCALE * (x + GELU_CUBIC * x * x * x)))


@triton.jit
def threshold_backward(grad, x, threshold):
    return tl.where(x <= threshold, 0, grad)


@triton.jit
def sigmoid_backward(grad, y):
    return grad * (1 - y) * y


@triton.jit
def tanh_backward(grad, y):
    return grad * (1 - y * y)


@triton.jit
def silu_backward(grad, x):
    s = sigmoid(x)
    return grad * s * (1 + x * (1 - s))


@triton.jit
def gelu_backward(grad, x):
    cumulative = 0.5 * (1 + tl.erf(x * SQRT_HALF))
    density = tl.exp(-0.5 * x * x) * INVERSE_SQRT_TAU
    return grad * (cumulative + x * density)


@triton.jit
def gelu_tanh_backward(grad, x):
    t = tanh(GELU_SCALE * (x + GELU_CUBIC * x * x * x))
    slope = GELU_SCALE * (1 + 3 * GELU_CUBIC * x * x)
    return grad * 0.5 * (1 + t + x * (1 - t * t) * slope)


@triton.jit
def addcmul(x, y, z, value):
    return x + value * y * z


@triton.jit
def addcdiv(x, y, z, value):
    return x + value * (y / z)


@triton.jit
def lerp(x, end, weight):
    return tl.where(tl.abs(weight) < 0.5, x + weight * (end - x), end - (end - x) * (1 - weight))
