"""Mathematical functions as LLVM IR: inlined where they are used, on scalars and vectors, so that they fuse.

    call(b, "exp", x)     x and the result are float or double

Functions of f32 that kernels lean on have code of their own (error at most about 2 units in the last place); the others
compute in f64 and round. The polynomials were fitted for this package, by interpolation at Chebyshev nodes with 40
digits. What is long and rare is called through the driver's table (MTIA_RARE_*), lane by lane.
"""

from __future__ import annotations

from torch_mtia.triton.vecmath import (  # noqa: F401  (register their functions)
    error_function,
    exponential,
    hyperbolic,
    trigonometric,
)
from torch_mtia.triton.vecmath.arithmetic import divided_by_scalar, high_of_64
from torch_mtia.triton.vecmath.exponential import power_of_single, power_of_two, split
from torch_mtia.triton.vecmath.number import FUNCTIONS, Number, call, from_bits, function, rare, through_double

__all__ = [
    "FUNCTIONS",
    "Number",
    "call",
    "divided_by_scalar",
    "from_bits",
    "function",
    "high_of_64",
    "power_of_single",
    "power_of_two",
    "rare",
    "split",
    "through_double",
]
