"""Tensors that are more than rows of numbers: nested, quantized; memory formats; meta and fake tensors."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F

from torch_mtia.conformance.agreement import EXACT, assert_agrees, numbers, stored
from torch_mtia.conformance.database import CPU

pytestmark = pytest.mark.filterwarnings("ignore")

Call = Callable[[torch.device], Any]

# Nested --------------------------------------------------------------------------------------------------------------


def nested(device: torch.device, layout: torch.layout) -> torch.Tensor:
    return torch.nested.nested_tensor(
        [numbers(length, 4, device=device, seed=length) for length in (3, 1, 5)], layout=layout
    )


NESTED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "itself": lambda x: x,
    "cloned": lambda x: x.clone(),
    "doubled": lambda x: x * 2,
    "added": lambda x: x + x,
    "relu": lambda x: x.relu(),
    "gelu": lambda x: F.gelu(x),
    "softmax": lambda x: x.softmax(-1),
    "layer_norm": lambda x: F.layer_norm(x, (4,), *numbers(2, 4, device=x.device)),
    "linear": lambda x: F.linear(x, numbers(6, 4, device=x.device)),
    "dropout of none": lambda x: F.dropout(x, 0.0),
    "transposed": lambda x: x.transpose(1, 2).transpose(1, 2),
    "moved": lambda x: x.cpu().to(x.device),
}


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged], ids=lambda layout: str(layout).split(".")[1])
@pytest.mark.parametrize("name", NESTED)
def test_nested(device: torch.device, name: str, layout: torch.layout) -> None:
    assert_agrees(lambda d: [*NESTED[name](nested(d, layout)).unbind()], device)


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged], ids=lambda layout: str(layout).split(".")[1])
def test_nested_padded(device: torch.device, layout: torch.layout) -> None:
    assert_agrees(lambda d: torch.nested.to_padded_tensor(nested(d, layout), 9.0), device, EXACT)


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged], ids=lambda layout: str(layout).split(".")[1])
def test_nested_gradients(device: torch.device, layout: torch.layout) -> None:
    def call(d: torch.device) -> Any:
        parts = [numbers(length, 4, device=d, seed=length).requires_grad_() for length in (3, 1, 5)]
        weight = numbers(6, 4, device=d).requires_grad_()
        joined = torch.nested.as_nested_tensor(parts, layout=layout)
        results = F.linear(joined, weight).unbind()
        loss = torch.stack([result.square().sum() for result in results]).sum()
        return torch.autograd.grad(loss, [*parts, weight])

    assert_agrees(call, device)


JAGGED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "mean": lambda x: x.mean(1),
    "sum": lambda x: x.sum(-1).values(),
    "softmax of the rows": lambda x: x.softmax(1).values(),
    "where": lambda x: torch.where(x > 0, x, x * 0).values(),
    "masked_fill": lambda x: x.masked_fill(x > 0, 1.0).values(),
    "cat": lambda x: torch.cat([x, x], -1).values(),
    "stored": lambda x: stored(x).values(),
    "copied by Python": lambda x: copy.deepcopy(x).values(),
    "embedding": lambda x: F.embedding((x.abs() * 2).long().clamp(max=4), numbers(5, 3, device=x.device)).values(),
}


@pytest.mark.parametrize("name", JAGGED)
def test_jagged(device: torch.device, name: str) -> None:
    assert_agrees(lambda d: JAGGED[name](nested(d, torch.jagged)), device)


def test_nested_attention(device: torch.device) -> None:
    def call(d: torch.device) -> Any:
        heads = nested(d, torch.jagged).unflatten(-1, (2, 2)).transpose(1, 2)
        return [*F.scaled_dot_product_attention(heads, heads, heads).transpose(1, 2).unbind()]

    assert_agrees(call, device)


def test_nested_of_values_and_offsets(device: torch.device) -> None:
    def call(d: torch.device) -> Any:
        made = torch.nested.nested_tensor_from_jagged(numbers(9, 4, device=d), torch.tensor([0, 3, 4, 9], device=d))
        return made.values(), made.offsets(), made.sum(1)  # type: ignore[attr-defined]

    assert_agrees(call, device)


# Quantized -----------------------------------------------------------------------------------------------------------


def per_tensor(device: torch.device, dtype: torch.dtype = torch.quint8) -> torch.Tensor:
    return torch.quantize_per_tensor(numbers(3, 4, device=device), 0.05, 10, dtype)


def per_channel(device: torch.device) -> torch.Tensor:
    scales, zeros = torch.tensor([0.1, 0.05, 0.02]).to(device), torch.tensor([0, 3, -2]).to(device)
    return torch.quantize_per_channel(numbers(3, 4, device=device), scales, zeros, 0, torch.qint8)


QUANTIZED: dict[str, Call] = {
    "per tensor": lambda d: per_tensor(d).dequantize(),
    "per tensor qint8": lambda d: per_tensor(d, torch.qint8).dequantize(),
    "per tensor qint32": lambda d: per_tensor(d, torch.qint32).dequantize(),
    "integers": lambda d: per_tensor(d).int_repr(),
    "parameters": lambda d: [(x := per_tensor(d)).q_scale(), x.q_zero_point()],
    "of tensors": lambda d: torch.quantize_per_tensor(
        numbers(3, device=d), torch.tensor(0.1, device=d), torch.tensor(2, device=d), torch.qint8
    ).dequantize(),
    "dynamic": lambda d: torch.quantize_per_tensor_dynamic(numbers(8, device=d), torch.qint8, False).dequantize(),
    "per channel": lambda d: per_channel(d).dequantize(),
    "parameters per channel": lambda d: [
        (x := per_channel(d)).q_per_channel_scales(),
        x.q_per_channel_zero_points(),
        x.q_per_channel_axis(),
    ],
    "viewed": lambda d: per_tensor(d).view(4, 3)[1:].dequantize(),
    "cloned": lambda d: per_tensor(d).clone().dequantize(),
    "copied": lambda d: per_tensor(CPU).to(d).dequantize(),
}


FAKE_QUANTIZED: dict[str, Call] = {
    "per tensor": lambda d: torch.fake_quantize_per_tensor_affine(numbers(9, device=d), 0.1, 0, -128, 127),
    "per channel": lambda d: torch.fake_quantize_per_channel_affine(
        numbers(3, 4, device=d), torch.tensor([0.1, 0.2, 0.3]).to(d), torch.zeros(3).to(d), 0, -8, 7
    ),
    "gradient": lambda d: _gradient_of_fake(d),
}


def _gradient_of_fake(device: torch.device) -> torch.Tensor:
    x = numbers(9, device=device).requires_grad_()
    torch.fake_quantize_per_tensor_affine(x, 0.1, 0, -8, 7).sum().backward()
    assert x.grad is not None
    return x.grad


@pytest.mark.parametrize("name", QUANTIZED)
def test_quantized(device: torch.device, name: str) -> None:
    assert_agrees(QUANTIZED[name], device)


@pytest.mark.parametrize("name", FAKE_QUANTIZED)
def test_fake_quantized(device: torch.device, name: str) -> None:
    """Numbers that are rounded as if they were quantized, and stay numbers."""
    assert_agrees(FAKE_QUANTIZED[name], device)


# Memory formats ------------------------------------------------------------------------------------------------------

KEEPERS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu": F.relu,
    "exp": torch.exp,
    "add": lambda x: x + x,
    "add a number": lambda x: x + 1,
    "add a contiguous one": lambda x: x + x.contiguous(),
    "add channels": lambda x: x + numbers(x.shape[1], 1, 1, device=x.device),
    "clone": torch.clone,
    "empty_like": lambda x: torch.empty_like(x).zero_(),
    "zeros_like": torch.zeros_like,
    "to another dtype": lambda x: x.to(torch.float64),
    "there and back": lambda x: x.cpu().to(x.device),
    "comparison": lambda x: x > 0,
    "where": lambda x: torch.where(x > 0, x, 0 * x),
    "clamp": lambda x: x.clamp(-1, 1),
    "dropout": lambda x: F.dropout(x, 0.0),
    "batch_norm": lambda x: F.batch_norm(x, None, None, training=True),
    "max_pool2d": lambda x: F.max_pool2d(x, 2),
    "avg_pool2d": lambda x: F.avg_pool2d(x, 2),
    "adaptive_avg_pool2d": lambda x: F.adaptive_avg_pool2d(x, 2),
    "interpolate": lambda x: F.interpolate(x, scale_factor=2, mode="nearest"),
    "bilinear": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
    "conv2d": lambda x: F.conv2d(x, numbers(4, x.shape[1], 3, 3, device=x.device)),
    "cat": lambda x: torch.cat([x, x], 1),
    "out of place copy": lambda x: torch.empty_like(x).copy_(x.contiguous()),
    "softmax": lambda x: x.softmax(1),
}


@pytest.mark.parametrize("name", KEEPERS)
def test_channels_last(device: torch.device, name: str) -> None:
    """The result has the CPU's numbers, and where the CPU's has channels last, so has the device's."""

    def call(d: torch.device) -> torch.Tensor:
        return KEEPERS[name](numbers(2, 3, 6, 8, device=d).contiguous(memory_format=torch.channels_last))

    assert_agrees(call, device)
    if call(CPU).is_contiguous(memory_format=torch.channels_last):
        assert call(device).is_contiguous(memory_format=torch.channels_last)


def test_a_model_with_channels_last(device: torch.device) -> None:
    def call(d: torch.device) -> Any:
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU())
        net = net.to(d).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        assert net[0].weight.is_contiguous(memory_format=torch.channels_last)
        result = net(numbers(2, 3, 8, 8, device=d).to(memory_format=torch.channels_last))
        return result, torch.autograd.grad(result.square().sum(), [*net.parameters()])

    assert_agrees(call, device, {"rtol": 1e-3, "atol": 1e-4})


def test_volumes_with_channels_last(device: torch.device) -> None:
    def call(d: torch.device) -> torch.Tensor:
        x = numbers(1, 2, 3, 4, 5, device=d).to(memory_format=torch.channels_last_3d)
        result = (x * 2).relu()
        assert result.is_contiguous(memory_format=torch.channels_last_3d)
        return result

    assert_agrees(call, device)


# Meta and fake tensors -----------------------------------------------------------------------------------------------


def test_meta_tensors(device: torch.device) -> None:
    x = numbers(3, 4, device=device).t()
    meta = x.to("meta")
    assert (meta.shape, meta.stride(), meta.dtype) == (x.shape, x.stride(), x.dtype)
    assert (meta @ meta.t()).shape == (4, 4)
    net = torch.nn.Linear(3, 2, device="meta").to_empty(device=device)
    assert net.weight.device == device


def test_fake_tensors(device: torch.device) -> None:
    """A fake tensor says of the result what the device then gives."""
    real = numbers(2, 3, 6, 8, device=device).contiguous(memory_format=torch.channels_last)
    functions: dict[str, Any] = {**KEEPERS, "conv2d": lambda x: F.conv2d(x, x.new_zeros(4, 3, 3, 3))}
    mode: Any = FakeTensorMode()
    with mode:
        fake = mode.from_tensor(real)
        assert fake.device == device
        for name in ("relu", "max_pool2d", "conv2d", "softmax", "to another dtype"):
            function = functions[name]
            promised = function(fake)
            with torch.utils._python_dispatch._disable_current_modes():
                given = function(real)
            assert (promised.shape, promised.dtype, promised.device) == (given.shape, given.dtype, given.device)
        made = torch.zeros(3, device=device)
        assert made.device == device
