"""Dropout and the randomized leaky relu: values, masks, gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.nn import functional

import torch_mtia

FLOATING = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


@pytest.fixture(autouse=True)
def _native_only() -> Iterator[None]:
    with torch_mtia.fallback.forbid():
        yield


@pytest.mark.parametrize("dtype", [*FLOATING, torch.complex64])
@pytest.mark.parametrize("size", [(1,), (64,), (7, 33), (3, 5, 7, 11), (70_001,)])
def test_dropout_scales_what_it_keeps(dtype: torch.dtype, size: tuple[int, ...]) -> None:
    x = torch.randn(size, dtype=dtype)
    output, mask = (t.cpu() for t in torch.native_dropout(x.to("mtia"), 0.3, True))
    assert (output.dtype, mask.dtype) == (dtype, torch.bool)
    torch.testing.assert_close(output, x.mul(mask).mul_(1 / 0.7))
    grad = torch.randn(size, dtype=dtype)
    backward = torch.ops.aten.native_dropout_backward
    expected = backward(grad, mask, 1 / 0.7)
    torch.testing.assert_close(backward(grad.to("mtia"), mask.to("mtia"), 1 / 0.7).cpu(), expected)


def test_dropout_keeps_the_layout() -> None:
    x = torch.randn(2, 3, 4, 5).to("mtia").to(memory_format=torch.channels_last)
    output, mask = torch.native_dropout(x, 0.3, True)
    assert output.stride() == mask.stride() == x.stride()
    assert torch.equal(output.cpu() != 0, mask.cpu())
    gaps = torch.randn(6, 8).to("mtia")[:, ::2]
    assert torch.native_dropout(gaps, 0.3, True)[0].stride() == (4, 1)


def test_dropout_lets_nan_and_infinity_through_as_on_the_cpu() -> None:
    x = torch.tensor([float("nan"), float("inf")]).repeat(50)
    output, mask = (t.cpu() for t in torch.native_dropout(x.to("mtia"), 0.5, True))
    torch.testing.assert_close(output, x.mul(mask).mul_(2), equal_nan=True)


@pytest.mark.parametrize("train", [True, None])
@pytest.mark.parametrize(("p", "kept"), [(0.0, True), (1.0, False)])
def test_native_dropout_of_all_or_nothing(train: bool | None, p: float, kept: bool) -> None:
    output, mask = (t.cpu() for t in torch.native_dropout(torch.full((100,), 3.0, device="mtia"), p, train))
    assert (mask == kept).all()
    assert (output == (3.0 if kept else 0.0)).all()


def test_native_dropout_in_evaluation_copies() -> None:
    x = torch.randn(10).to("mtia")
    output, mask = torch.native_dropout(x, 0.5, False)
    assert output.data_ptr() != x.data_ptr()
    assert torch.equal(output.cpu(), x.cpu())
    assert mask.cpu().all()


def test_dropout_is_differentiated_with_its_mask() -> None:
    x = torch.randn(1000).to("mtia").requires_grad_()
    output = functional.dropout(x, 0.25)
    assert output.grad_fn is not None
    assert output.grad_fn.name() == "NativeDropoutBackward0"
    grad = torch.randn(1000)
    output.backward(grad.to("mtia"))
    assert x.grad is not None
    kept = output.detach().cpu() != 0
    assert 600 < int(kept.sum()) < 900
    torch.testing.assert_close(x.grad.cpu(), grad * kept / 0.75)


def test_dropout_that_drops_nothing_is_the_input() -> None:
    x = torch.randn(10).to("mtia").requires_grad_()
    assert functional.dropout(x, 0.5, training=False) is x
    assert functional.dropout(x, 0.0) is x
    module = torch.nn.Dropout(0.5).eval()
    assert module(x) is x


def test_dropout_of_everything() -> None:
    x = torch.randn(10).to("mtia").requires_grad_()
    output = functional.dropout(x, 1.0)
    assert (output.detach().cpu() == 0).all()
    output.backward(torch.ones(10, device="mtia"))
    assert x.grad is not None
    assert (x.grad.cpu() == 0).all()


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_dropout_without_autograd(context: Callable[[], Any]) -> None:
    with context():
        output = functional.dropout(torch.ones(1000, device="mtia"), 0.5)
    assert set(output.cpu().tolist()) == {0.0, 2.0}


@pytest.mark.parametrize("repeated", ["input", "noise"])
def test_rrelu_in_repeated_elements_is_refused(repeated: str) -> None:
    written = {name: torch.ones(4, device="mtia") for name in ("input", "noise")}
    written[repeated] = torch.ones(1, device="mtia").expand(4)
    with pytest.raises(RuntimeError, match="more than one element of the written-to tensor"):
        torch.ops.aten.rrelu_with_noise_(written["input"], written["noise"], 0.1, 0.3, True)


def test_rrelu() -> None:
    x = torch.randn(1000)
    noise = torch.empty(1000, device="mtia")
    output = torch.ops.aten.rrelu_with_noise(x.to("mtia"), noise, 0.1, 0.3, True).cpu()
    slopes = noise.cpu()
    assert (slopes[x > 0] == 1).all()
    assert slopes[x <= 0].min() >= 0.1
    assert slopes[x <= 0].max() <= 0.3
    assert torch.equal(output, x * slopes)
    in_evaluation = functional.rrelu(x.to("mtia"), 0.1, 0.3, training=False).cpu()
    torch.testing.assert_close(in_evaluation, functional.rrelu(x, 0.1, 0.3, training=False))
    in_place = x.to("mtia")
    assert functional.rrelu_(in_place, 0.1, 0.3, training=False) is in_place
    torch.testing.assert_close(in_place.cpu(), in_evaluation)
    with_gradient = x.to("mtia").requires_grad_()
    functional.rrelu(with_gradient, 0.1, 0.3, training=True).backward(torch.ones(1000, device="mtia"))
    assert with_gradient.grad is not None
    assert (with_gradient.grad.cpu()[x > 0] == 1).all()
    assert with_gradient.grad.cpu()[x <= 0].max() <= 0.3
