"""Replacements in what Inductor fuses, pads and lowers, which it does for listed devices only."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from torch_mtia.backend import device_type
from torch_mtia.upstream_gates.ours import is_ours


def online_softmax(original: Callable[[Any], bool]) -> Callable[[Any], bool]:
    @functools.wraps(original)
    def prepare_softmax_extra_check(match: Any) -> bool:
        from torch._inductor import config

        if match.kwargs["x"].meta["val"].device.type == device_type():
            return bool(config.online_softmax)
        return original(match)

    return prepare_softmax_extra_check


def padded_where_asked_for(original: Callable[..., bool]) -> Callable[..., bool]:
    """Upstream pads what it has measured to be quicker, or all with `force_shape_pad`: it measures for tensor cores."""

    @functools.wraps(original)
    def check_device(a: torch.Tensor, b: torch.Tensor) -> bool:
        from torch._inductor import config

        return original(a, b) or (config.force_shape_pad and a.device.type == b.device.type == device_type())

    return check_device


def addmm_of_every_bias(original: Callable[..., Any]) -> Callable[..., Any]:
    """Upstream reads the first stride of a bias that may have no dimension, and its templates multiply what beta or
    alpha leave out, which may be NaN, by 0."""

    @functools.wraps(original)
    def addmm(bias: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1, **options: Any) -> Any:
        from torch._inductor.lowering import lowerings

        if 0 in (alpha, beta) and a.get_device().type == device_type():
            return fallback(torch.ops.aten.addmm.default)(bias, a, b, beta=beta, alpha=alpha)
        if not bias.get_size() and a.get_device().type == device_type():
            bias = lowerings[torch.ops.aten.expand](bias, [b.get_size()[1]])
        return original(bias, a, b, beta=beta, alpha=alpha, **options)

    return addmm


def baddbmm_without_what_is_left_out(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def baddbmm(bias: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1, **options: Any) -> Any:
        if 0 in (alpha, beta) and a.get_device().type == device_type():
            return fallback(torch.ops.aten.baddbmm.default)(bias, a, b, beta=beta, alpha=alpha)
        return original(bias, a, b, beta=beta, alpha=alpha, **options)

    return baddbmm


def fallback(operator: Any) -> Callable[..., Any]:
    """Has the operator's own kernel compute it."""
    from torch._inductor.lowering import fallback_handler

    return fallback_handler(operator, add_to_fallback_set=False)  # type: ignore[no-any-return]


def generated_but_for_other_dtypes(original: Callable[..., Any]) -> Callable[..., Any]:
    """Upstream's native product has the dtype of its operands, whatever was asked for."""

    @functools.wraps(original)
    def product(a: Any, b: Any, out_dtype: torch.dtype, **options: Any) -> Any:
        from torch._inductor import config

        if not is_ours(a, b):
            return original(a, b, out_dtype, **options)
        with config.patch({"triton.native_matmul": False}):
            return original(a, b, out_dtype, **options)

    return product


def addmm_with_out_dtype(original: Callable[..., Any]) -> Callable[..., Any]:
    def addmm(*args: Any, **options: Any) -> Any:
        return (fallback(torch.ops.aten.addmm.dtype) if is_ours(args) else original)(*args, **options)

    return addmm


def baddbmm_with_out_dtype(original: Callable[..., Any]) -> Callable[..., Any]:
    def baddbmm(bias: Any, a: Any, b: Any, out_dtype: torch.dtype, **factors: complex) -> Any:
        from torch._inductor.lowering import lowerings

        if not is_ours(bias, a, b):
            return original(bias, a, b, out_dtype, **factors)
        beta, alpha = factors.get("beta", 1), factors.get("alpha", 1)
        aten = torch.ops.aten
        product = lowerings[aten.bmm.dtype](a, b, out_dtype)
        if alpha != 1:
            product = lowerings[aten.mul](product, alpha)
        return product if beta == 0 else lowerings[aten.add](product, bias, alpha=beta)

    return baddbmm


def operations_with_out_dtype(original: Callable[..., int]) -> Callable[..., int]:
    @functools.wraps(original)
    def baddbmm_flop(bias: Any, a: Any, b: Any, *out_dtype: Any, **kwargs: Any) -> int:
        return original(bias, a, b, *(() if is_ours(bias, a, b) else out_dtype), **kwargs)

    return baddbmm_flop


def batched_with_out_dtype(original: Callable[..., Any]) -> Callable[..., Any]:
    """For shapes too, which are asked of a kernel that upstream has made of its decomposition."""

    def baddbmm(
        self: torch.Tensor,
        batch1: torch.Tensor,
        batch2: torch.Tensor,
        out_dtype: torch.dtype,
        **factors: complex,
    ) -> torch.Tensor:
        if not is_ours(self, batch1, batch2):
            return original(self, batch1, batch2, out_dtype, **factors)  # type: ignore[no-any-return]
        beta, alpha = factors.get("beta", 1), factors.get("alpha", 1)
        result = torch.bmm(batch1, batch2, out_dtype=out_dtype) * alpha
        return result if beta == 0 else result + self * beta

    _shapes().impl("baddbmm.dtype", baddbmm, "Meta", allow_override=True)
    operator = torch.ops.aten.baddbmm.dtype
    operator.py_kernels[torch._C.DispatchKey.Meta] = baddbmm  # which is asked first while Dynamo traces
    operator._dispatch_cache.clear()
    return baddbmm


@functools.cache
def _shapes() -> torch.library.Library:
    """Kept: what is registered goes with it."""
    return torch.library.Library("aten", "IMPL")
