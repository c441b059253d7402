"""What the tests of Triton's language share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice


@pytest.fixture
def tensors_on_mtia() -> Iterator[None]:
    """For one test, tensors are made on mtia where nothing else is said."""
    torch.set_default_device("mtia")
    yield
    torch.set_default_device(None)


def with_source(template: Any, **replacements: str) -> Any:
    """The kernel with words of its source replaced, to test one operation after the other."""
    kernel = triton.JITFunction(template.fn)
    source = kernel.src
    for word, text in replacements.items():
        source = source.replace(word, text)
    kernel._unsafe_update_src(source)
    return kernel


@triton.jit
def _unary_kernel(x, z, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(x + i)
    tl.store(z + i, EXPRESSION)  # type: ignore[name-defined]  # noqa: F821


@triton.jit
def _binary_kernel(x, y, z, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(x + i)
    y = tl.load(y + i)
    tl.store(z + i, EXPRESSION)  # type: ignore[name-defined]  # noqa: F821


@triton.jit
def _ternary_kernel(x, y, t, z, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(x + i)
    y = tl.load(y + i)
    t = tl.load(t + i)
    tl.store(z + i, EXPRESSION)  # type: ignore[name-defined]  # noqa: F821


functions_of_expressions = libdevice  # which expressions may call


def run(expression: str, *operands: torch.Tensor, out: torch.dtype | None = None, arch: str = "") -> torch.Tensor:
    """An expression of x, of x and y, or of x, y and t, evaluated on mtia. Operands and result are CPU tensors of one
    size, a power of two."""
    template = (_unary_kernel, _binary_kernel, _ternary_kernel)[len(operands) - 1]
    moved = [operand.to("mtia") for operand in operands]
    result = torch.empty_like(moved[0], dtype=out)
    options = {"arch": arch} if arch else {}
    with_source(template, EXPRESSION=expression)[(1,)](*moved, result, N=result.numel(), **options)
    return result.cpu()


def plan_of(kernel: Any, *arguments: Any, arch: str = "x86-64-v4", **constants: Any) -> str:
    """The plan of a kernel, for a machine with AVX-512."""
    compiled = kernel.warmup(*arguments, grid=(1,), arch=arch, **constants)
    return str(compiled.asm["plan"])
