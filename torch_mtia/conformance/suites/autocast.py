"""Autocast: which operators it casts, how it nests, and what backward and the scale of gradients make of it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from torch_mtia.conformance.agreement import assert_agrees, network, numbers
from torch_mtia.conformance.database import dtype_name

pytestmark = pytest.mark.filterwarnings("ignore")

Tensor = torch.Tensor

HALVES = (torch.float16, torch.bfloat16)
by_half = pytest.mark.parametrize("dtype", HALVES, ids=dtype_name)

NARROWED: dict[str, Callable[[Tensor], Tensor]] = {
    "matmul": lambda x: x @ x,
    "mm": lambda x: x.mm(x),
    "bmm": lambda x: x[None].bmm(x[None]),
    "addmm": lambda x: torch.addmm(x, x, x),
    "baddbmm": lambda x: torch.baddbmm(x[None], x[None], x[None]),
    "linear": lambda x: F.linear(x, x, x[0]),
    "conv1d": lambda x: F.conv1d(x[None], x[:, :, None]),
    "conv2d": lambda x: F.conv2d(x[None, :, :, None], x[:, :, None, None]),
    "conv3d": lambda x: F.conv3d(x[None, :, :, None, None], x[:, :, None, None, None]),
    "conv_transpose2d": lambda x: F.conv_transpose2d(x[None, :, :, None], x[:, :, None, None]),
    "attention": lambda x: F.scaled_dot_product_attention(x[None, None], x[None, None], x[None, None]),
    "einsum": lambda x: torch.einsum("ij,jk->ik", x, x),
}
WIDENED: dict[str, Callable[[Tensor], Tensor]] = {
    "prod": lambda x: x.prod(),
    "cdist": lambda x: torch.cdist(x, x),
    "mse_loss": lambda x: F.mse_loss(x, x + 1),
    "l1_loss": lambda x: F.l1_loss(x, x + 1),
    "smooth_l1_loss": lambda x: F.smooth_l1_loss(x, x + 1),
    "kl_div": lambda x: F.kl_div(x, x.abs()),
    "nll_loss": lambda x: F.nll_loss(x, torch.zeros(len(x), dtype=torch.long, device=x.device)),
    "cosine_embedding_loss": lambda x: F.cosine_embedding_loss(x, x, torch.ones(len(x), device=x.device)),
}
WIDENED_ON_ACCELERATORS: dict[str, Callable[[Tensor], Tensor]] = {
    "softmax": lambda x: x.softmax(-1),
    "log_softmax": lambda x: x.log_softmax(-1),
    "exp": lambda x: x.exp(),
    "log": lambda x: x.abs().log(),
    "pow": lambda x: x.pow(2),
    "sum": lambda x: x.sum(),
    "cumsum": lambda x: x.cumsum(0),
    "layer_norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "norm": lambda x: x.norm(),
    "rsqrt": lambda x: x.abs().rsqrt(),
    "softplus": F.softplus,
}
UNCHANGED: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu, "add": lambda x: x + x, "max_pool1d": lambda x: F.max_pool1d(x, 2), "transpose": lambda x: x.t()
}  # fmt: skip


@by_half
@pytest.mark.parametrize("name", NARROWED)
def test_narrows(device: torch.device, name: str, dtype: torch.dtype) -> None:
    def call(d: torch.device) -> Tensor:
        with torch.autocast(d.type, dtype):
            return NARROWED[name](numbers(4, 4, device=d))

    assert call(device).dtype == dtype
    assert_agrees(call, device, {"rtol": 2e-2, "atol": 2e-2})
    assert NARROWED[name](numbers(4, 4, device=device)).dtype == torch.float32


@by_half
@pytest.mark.parametrize("name", WIDENED)
def test_widens(device: torch.device, name: str, dtype: torch.dtype) -> None:
    def call(d: torch.device) -> Tensor:
        with torch.autocast(d.type, dtype):
            return WIDENED[name](numbers(4, 4, device=d, dtype=dtype))

    assert call(device).dtype == torch.float32
    assert_agrees(call, device, {"rtol": 1e-2, "atol": 1e-2})


@by_half
@pytest.mark.parametrize("name", WIDENED_ON_ACCELERATORS)
def test_widens_on_accelerators(accelerator: torch.device, name: str, dtype: torch.dtype) -> None:
    with torch.autocast(accelerator.type, dtype):
        assert WIDENED_ON_ACCELERATORS[name](numbers(4, 4, device=accelerator, dtype=dtype)).dtype == torch.float32


@by_half
@pytest.mark.parametrize("name", UNCHANGED)
def test_leaves(device: torch.device, name: str, dtype: torch.dtype) -> None:
    with torch.autocast(device.type, dtype):
        for given in (torch.float32, dtype):
            assert UNCHANGED[name](numbers(4, 4, device=device, dtype=given)).dtype == given


@by_half
def test_two_dtypes(device: torch.device, dtype: torch.dtype) -> None:
    narrow, wide = numbers(4, 4, device=device, dtype=dtype), numbers(4, 4, device=device)
    with torch.autocast(device.type, dtype):
        assert torch.cat([narrow, wide]).dtype == torch.stack([wide, narrow]).dtype == torch.float32
        assert (narrow @ wide).dtype == dtype
        assert (wide.double() @ wide.double()).dtype == torch.float64
        assert (wide.long() + wide.long()).dtype == torch.int64


def test_nested_and_disabled(device: torch.device) -> None:
    x, kind = numbers(4, 4, device=device), device.type

    def cast(dtype: torch.dtype, **options: Any) -> AbstractContextManager[Any]:
        return torch.autocast(kind, dtype, **options)

    assert not torch.is_autocast_enabled(kind)
    with cast(torch.bfloat16):
        assert torch.is_autocast_enabled(kind)
        assert torch.get_autocast_dtype(kind) == torch.bfloat16
        with cast(torch.float16):
            assert (x @ x).dtype == torch.float16
        with cast(torch.bfloat16, enabled=False):
            assert (x @ x).dtype == torch.float32
        assert (x @ x).dtype == torch.bfloat16
        with torch.autocast("cpu" if kind != "cpu" else "cuda", torch.bfloat16, enabled=False):
            assert (x @ x).dtype == torch.bfloat16
    assert not torch.is_autocast_enabled(kind)
    assert torch.amp.autocast_mode.is_autocast_available(kind)
    with pytest.raises(ZeroDivisionError), cast(torch.bfloat16):
        raise ZeroDivisionError
    assert (x @ x).dtype == torch.float32


@by_half
def test_backward(device: torch.device, dtype: torch.dtype) -> None:
    """Gradients have the dtypes of the parameters, whether casts of these are kept or made anew."""

    def call(d: torch.device) -> Any:
        gradients: list[Tensor] = []
        for kept in (True, False):
            net, x = network(d), numbers(6, 4, device=d).requires_grad_()
            with torch.autocast(d.type, dtype, cache_enabled=kept):
                result = net(x) + net(2 * x)
                assert result.dtype == dtype
                loss = F.mse_loss(result, torch.ones(6, 3, device=d))
            gradients += torch.autograd.grad(loss, [x, *net.parameters()])
        assert all(gradient.dtype == torch.float32 for gradient in gradients)
        return gradients

    assert_agrees(call, device, {"rtol": 3e-2, "atol": 3e-2})


def test_a_function_of_ones_own(device: torch.device) -> None:
    class Product(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type=device.type, cast_inputs=torch.float32)  # type: ignore[untyped-decorator]
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            assert not torch.is_autocast_enabled(device.type)
            return x @ x

        @staticmethod
        @torch.amp.custom_bwd(device_type=device.type)  # type: ignore[untyped-decorator]
        def backward(ctx: Any, gradient: Tensor) -> Any:
            (x,) = ctx.saved_tensors
            return gradient @ x.t() + x.t() @ gradient

    x = numbers(4, 4, device=device).requires_grad_()
    with torch.autocast(device.type, torch.bfloat16):
        result = Product.apply(x)  # type: ignore[no-untyped-call]
    assert result.dtype == torch.float32
    (gradient,) = torch.autograd.grad(result.sum(), x)
    (expected,) = torch.autograd.grad((x @ x).sum(), x)
    torch.testing.assert_close(gradient, expected)


def test_the_scale_of_gradients(device: torch.device) -> None:
    """It grows after good steps, shrinks after an infinite gradient, and such a step changes nothing."""
    scaler = torch.amp.GradScaler(device.type, init_scale=8.0, growth_interval=2)
    parameter = torch.nn.Parameter(torch.ones(4, device=device))
    optimizer = torch.optim.SGD([parameter], lr=0.5)
    scales, values = [], []
    for factor in (1.0, 1.0, float("inf"), 1.0, float("nan"), 2.0):
        optimizer.zero_grad()
        scaler.scale((parameter * factor).sum()).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
        values.append(parameter[0].item())
    assert scales == [8.0, 16.0, 8.0, 8.0, 4.0, 4.0]
    assert values == [0.5, 0.0, 0.0, -0.5, -0.5, -1.5]
    other = torch.amp.GradScaler(device.type)
    other.load_state_dict(scaler.state_dict())
    assert other.get_scale() == 4.0
    scaler.scale(parameter.sum()).backward()
    scaler.unscale_(optimizer)
    with pytest.raises(RuntimeError, match="unscale_"):
        scaler.unscale_(optimizer)
