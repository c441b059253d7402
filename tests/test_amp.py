"""Automatic mixed precision: autocast, gradient scaling, gradient clipping."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import nn

from torch_mtia import fallback

CPU = torch.device("cpu")
SHORT = [torch.bfloat16, torch.float16]

IN_SHORT: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "mm": lambda x: torch.mm(x, x),
    "matmul": lambda x: x @ x,
    "addmm": lambda x: torch.addmm(x, x, x),
    "bmm": lambda x: torch.bmm(x[None], x[None]),
    "linear": lambda x: nn.functional.linear(x, x),
    "conv2d": lambda x: nn.functional.conv2d(x[None, None], x[None, None, :3, :3]),
}
IN_FLOAT: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "exp": torch.exp,
    "log": lambda x: x.abs().log(),
    "softmax": lambda x: x.softmax(-1),
    "log_softmax": lambda x: x.log_softmax(-1),
    "sum": torch.sum,
    "layer_norm": lambda x: nn.functional.layer_norm(x, x.shape[-1:]),
    "mse_loss": lambda x: nn.functional.mse_loss(x, x * 2),
}


@pytest.mark.parametrize("dtype", SHORT, ids=str)
@pytest.mark.parametrize("name", IN_SHORT)
def test_products_are_computed_in_the_short_dtype(device: torch.device, name: str, dtype: torch.dtype) -> None:
    x = torch.randn(8, 8)
    with torch.autocast("mtia", dtype=dtype):
        actual = IN_SHORT[name](x.to(device))
    assert actual.dtype == dtype
    torch.testing.assert_close(actual.cpu(), IN_SHORT[name](x.to(dtype)), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("dtype", SHORT, ids=str)
@pytest.mark.parametrize("name", IN_FLOAT)
def test_what_needs_range_is_computed_in_float(device: torch.device, name: str, dtype: torch.dtype) -> None:
    x = torch.randn(8, 8).to(dtype)
    with torch.autocast("mtia", dtype=dtype):
        actual = IN_FLOAT[name](x.to(device))
    assert actual.dtype == torch.float32
    with torch.autocast("mtia", enabled=False):
        torch.testing.assert_close(actual.cpu(), IN_FLOAT[name](x.float()), rtol=1e-2, atol=1e-2)


def test_the_widest_dtype_wins_where_dtypes_mix(device: torch.device) -> None:
    short, long = torch.randn(4, device=device).bfloat16(), torch.randn(4, device=device)
    with torch.autocast("mtia", dtype=torch.bfloat16):
        assert torch.cat([short, long]).dtype == torch.float32


def test_autocast_is_of_one_device(device: torch.device) -> None:
    x = torch.randn(4, 4)
    with torch.autocast("mtia", dtype=torch.bfloat16):
        assert torch.is_autocast_enabled("mtia")
        assert (x @ x).dtype == torch.float32
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (x.to(device) @ x.to(device)).dtype == torch.float32
    assert not torch.is_autocast_enabled("mtia")


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


@pytest.mark.parametrize("dtype", SHORT, ids=str)
def test_gradients_arrive_in_the_dtype_of_the_parameters(device: torch.device, dtype: torch.dtype) -> None:
    def gradients(where: torch.device) -> list[torch.Tensor]:
        network, x = model().to(where), torch.linspace(-1, 1, 32).view(4, 8).to(where)
        with torch.autocast(where.type, dtype=dtype):
            loss = network(x).float().square().mean()
        loss.backward()
        return [p.grad.cpu() for p in network.parameters() if p.grad is not None]

    actual = gradients(device)
    assert {g.dtype for g in actual} == {torch.float32}
    torch.testing.assert_close(actual, gradients(CPU), rtol=5e-2, atol=5e-3)


# Gradient scaling ----------------------------------------------------------------------------------------------------


def train(where: torch.device, *, fused: bool, infinite_at: int) -> tuple[list[torch.Tensor], list[float]]:
    """Parameters after a few steps, one of them with an infinite gradient, and the scale before each."""
    network = model().to(where)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01, fused=fused, foreach=not fused)
    scaler = torch.amp.GradScaler(where.type, init_scale=64.0, growth_interval=2)
    x, scales = torch.linspace(-1, 1, 32).view(4, 8).to(where), []
    for step in range(6):
        optimizer.zero_grad()
        loss = network(x).square().mean()
        scaler.scale(loss).backward()
        if step == infinite_at:
            first = next(network.parameters())
            assert first.grad is not None
            first.grad[0, 0] = math.inf
        scales.append(scaler.get_scale())
        scaler.step(optimizer)
        scaler.update()
    return [p.detach().cpu() for p in network.parameters()], scales


@pytest.mark.parametrize("fused", [False, True], ids=["foreach", "fused"])
def test_scaled_training_is_that_of_the_cpu(device: torch.device, fused: bool) -> None:
    actual, scales = train(device, fused=fused, infinite_at=3)
    expected, expected_scales = train(CPU, fused=fused, infinite_at=3)
    assert scales == expected_scales
    assert scales[4] == scales[3] / 2
    torch.testing.assert_close(actual, expected)


def test_a_scaler_unscales_before_clipping(device: torch.device) -> None:
    parameter = torch.zeros(4, device=device, requires_grad=True)
    optimizer, scaler = torch.optim.SGD([parameter], lr=1.0), torch.amp.GradScaler("mtia", init_scale=1024.0)
    scaler.scale((parameter * 3.0).sum()).backward()
    scaler.unscale_(optimizer)
    norm = nn.utils.clip_grad_norm_([parameter], 1.0)
    assert norm.item() == pytest.approx(6.0)
    scaler.step(optimizer)
    assert parameter.tolist() == pytest.approx([-0.5] * 4, rel=1e-4)


def test_a_scaler_saves_its_state(device: torch.device) -> None:
    scaler = torch.amp.GradScaler("mtia", init_scale=8.0)
    assert scaler.scale(torch.ones(1, device=device)).item() == 8.0
    other = torch.amp.GradScaler("mtia")
    other.load_state_dict(scaler.state_dict())
    assert other.get_scale() == 8.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, *SHORT], ids=str)
@pytest.mark.parametrize("bad", [None, math.inf, math.nan], ids=str)
def test_unscaling_finds_what_is_not_finite(device: torch.device, bad: float | None, dtype: torch.dtype) -> None:
    gradients = [torch.ones(3, dtype=dtype, device=device), torch.ones(2, 5, dtype=dtype, device=device).t()]
    if bad is not None:
        gradients[1][3, 1] = bad
    found, inverse = torch.zeros(1, device=device), torch.full((1,), 0.25, device=device)
    with fallback.forbid():
        torch._amp_foreach_non_finite_check_and_unscale_(gradients, found, inverse)
    assert found.item() == (bad is not None)
    assert gradients[0].tolist() == [0.25] * 3


def test_the_scale_grows_and_shrinks(device: torch.device) -> None:
    scale, tracker = torch.full((1,), 4.0, device=device), torch.zeros(1, dtype=torch.int32, device=device)
    history = []
    with fallback.forbid():
        for found in (0.0, 0.0, 1.0, 0.0):
            flag = torch.full((1,), found, device=device)
            assert torch._amp_update_scale_(scale, tracker, flag, 2.0, 0.5, 2) is scale
            history.append((scale.item(), tracker.item()))
    assert history == [(4.0, 1), (8.0, 0), (4.0, 0), (4.0, 1)]


# Clipping ------------------------------------------------------------------------------------------------------------


def with_gradients(where: torch.device) -> list[torch.Tensor]:
    torch.manual_seed(0)
    parameters = []
    for shape in ((3,), (4, 5), ()):
        parameters.append(torch.zeros(shape, device=where, requires_grad=True))
        parameters[-1].grad = torch.randn(shape).to(where)
    return parameters


@pytest.mark.parametrize("foreach", [True, False, None])
@pytest.mark.parametrize("norm_type", [2.0, 1.0, math.inf])
def test_clipping_to_a_norm(device: torch.device, norm_type: float, foreach: bool | None) -> None:
    def clip(where: torch.device) -> list[torch.Tensor | None]:
        parameters = with_gradients(where)
        norm = nn.utils.clip_grad_norm_(parameters, 0.5, norm_type, foreach=foreach)
        return [norm, *(p.grad for p in parameters)]

    actual = clip(device)
    assert all(t is not None and t.device == device for t in actual)
    torch.testing.assert_close(actual, clip(CPU), check_device=False)


def test_clipping_to_a_norm_raises_for_what_is_not_finite(device: torch.device) -> None:
    parameters = with_gradients(device)
    assert parameters[0].grad is not None
    parameters[0].grad[0] = math.nan
    with pytest.raises(RuntimeError, match="non-finite"):
        nn.utils.clip_grad_norm_(parameters, 1.0, error_if_nonfinite=True)


@pytest.mark.parametrize("foreach", [True, False, None])
def test_clipping_to_a_value(device: torch.device, foreach: bool | None) -> None:
    def clip(where: torch.device) -> list[torch.Tensor | None]:
        parameters = with_gradients(where)
        nn.utils.clip_grad_value_(parameters, 0.3, foreach=foreach)
        return [p.grad for p in parameters]

    torch.testing.assert_close(clip(device), clip(CPU), check_device=False)
