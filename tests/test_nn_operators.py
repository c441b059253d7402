"""Operators of neural networks with kernels of their own give what the CPU gives, forward and backward."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import OpInfo
from torch.utils import _pytree as pytree

import torch_mtia
from torch_mtia import torch_version

aten = torch.ops.aten
Function = Callable[..., Any]
MOST_SAMPLES = 8
DTYPES = (torch.float32, torch.bfloat16)

# By OpInfo's names, without "nn.functional."
OPERATORS = (
    *("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d"),
    *("layer_norm", "group_norm", "batch_norm"),
    *("embedding",),
    *("adaptive_avg_pool2d", "adaptive_avg_pool3d", "max_pool3d", "max_unpool2d", "max_unpool3d", "unfold"),
    *("multi_margin_loss", "multilabel_margin_loss", "prelu", "glu", "logsigmoid", "grid_sample"),
    *("huber_loss", "smooth_l1_loss", "mse_loss", "binary_cross_entropy", "ctc_loss", "embedding_bag"),
    *("scaled_dot_product_attention", "pad.reflect", "pad.replicate", "instance_norm", "channel_shuffle"),
)
# What the samples use beside: other operators, which need not have kernels.
OTHERS = (
    *("aten::where.self", "aten::div.out", "aten::glu.out", "aten::logit", "aten::smooth_l1_loss.out"),
    *("aten::arange.start_out", "aten::mse_loss.out", "aten::eq.Scalar_out", "aten::mean.out", "aten::sum.IntList_out"),
    *("aten::clamp.out", "aten::masked_fill_.Scalar", "aten::index_select", "aten::pow.Tensor_Scalar_out"),
    *("aten::bmm.out", "aten::isneginf.out", "aten::where.self_out", "aten::neg.out", "aten::abs.out"),
    *("aten::add.out", "aten::_softmax.out", "aten::all.dim_out", "aten::mul.out", "aten::any.dim", "aten::sgn.out"),
    *("aten::clamp_min.Tensor_out", "aten::exp.out", "aten::_index_put_impl_", "aten::logit_backward.grad_input"),
)
OWN = (
    "aten::convolution_overrideable",
    "aten::convolution_backward_overrideable",
    "aten::native_layer_norm",
    "aten::native_batch_norm_backward",
    "aten::_embedding_bag",
    "aten::_scaled_dot_product_fused_attention_overrideable",
    "aten::_ctc_loss",
)


@pytest.mark.parametrize("name", OWN)
def test_the_operators_of_this_module_are_native(name: str) -> None:
    assert name in torch._C._dispatch_get_registrations_for_dispatch_key("MTIA")


def on(device: torch.device, value: Any) -> Any:
    """A copy of the arguments with leaves of their own and the same strides."""

    def move(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        copy = torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype, device=device)
        return copy.copy_(leaf.detach()).requires_grad_(leaf.requires_grad)

    return pytree.tree_map(move, value)


def tensors(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def same(actual: torch.Tensor, expected: torch.Tensor, tolerance: float | None) -> None:
    torch.testing.assert_close(
        actual, expected, rtol=tolerance, atol=tolerance, check_device=False, check_stride=True, equal_nan=True
    )


def compare(device: torch.device, function: Function, arguments: Any, tolerance: float | None = None) -> None:
    """Results, gradients, strides and dtypes; nothing may fall back but OTHERS."""
    torch_mtia.fallback.reset()
    here, there = on(torch.device("cpu"), arguments), on(device, arguments)
    expected = tensors(function(*here))
    actual = tensors(function(*there))
    assert set(torch_mtia.fallback.stats()) <= set(OTHERS)
    assert len(actual) == len(expected)
    for result, reference in zip(actual, expected, strict=True):
        same(result, reference, tolerance)
    roots = [i for i, reference in enumerate(expected) if reference.requires_grad]
    if not roots:
        return
    gradients = [torch.randn(expected[i].shape).to(expected[i].dtype) for i in roots]
    moved = [gradient.to(device) for gradient in gradients]
    torch.autograd.backward([expected[i] for i in roots], gradients)
    torch.autograd.backward([actual[i] for i in roots], moved)
    assert set(torch_mtia.fallback.stats()) <= set(OTHERS)
    for leaf, reference in zip(tensors(there), tensors(here), strict=True):
        if reference.grad is not None:
            assert leaf.grad is not None
            torch.testing.assert_close(leaf.grad, reference.grad, rtol=tolerance, atol=tolerance, check_device=False)


def leaf(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape).to(dtype).requires_grad_()


# Convolutions --------------------------------------------------------------------------------------------------------


@pytest.mark.sampled(6)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_convolutions(device: torch.device, dims: int, transposed: bool, dtype: torch.dtype) -> None:
    convolution = getattr(F, f"conv{'_transpose' if transposed else ''}{dims}d")
    formats = [torch.contiguous_format]
    if dims > 1:
        formats.append(torch.channels_last if dims == 2 else torch.channels_last_3d)
    for groups, dilation, stride, layout, biased in itertools.product(
        (1, 2, 4), (1, 2), (1, 2), formats, (False, True)
    ):
        if dilation == stride == 2:
            continue
        x = torch.randn(2, 4, *(9, 8, 7)[:dims]).to(dtype).contiguous(memory_format=layout).requires_grad_()
        channels = (4, 8 // groups) if transposed else (8, 4 // groups)
        weight = torch.randn(*channels, *(3, 2, 3)[:dims]).to(dtype).requires_grad_()
        bias = leaf(8, dtype=dtype) if biased else None

        def run(
            *arguments: torch.Tensor | None, stride: int = stride, dilation: int = dilation, groups: int = groups
        ) -> Any:
            return convolution(*arguments, stride=stride, padding=1, dilation=dilation, groups=groups)

        compare(device, run, (x, weight, bias), 0.2 if dtype is torch.bfloat16 else 1e-4)


@pytest.mark.parametrize("mask", list(itertools.product([True, False], repeat=3)), ids=str)
def test_each_gradient_of_a_convolution_can_be_left_out(device: torch.device, mask: tuple[bool, ...]) -> None:
    grad, x, weight = torch.randn(2, 5, 6, 6), torch.randn(2, 3, 6, 6), torch.randn(5, 3, 3, 3)
    rest = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1, mask)
    expected = aten.convolution_backward(grad, x, weight, [5], *rest)
    actual = aten.convolution_backward(grad.to(device), x.to(device), weight.to(device), [5], *rest)
    for wanted, result, reference in zip(mask, actual, expected, strict=True):
        assert (result is not None) == wanted
        if wanted:
            torch.testing.assert_close(result.cpu(), reference, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shape", [(0, 3, 8, 8), (3, 8, 8)], ids=str)
def test_convolutions_of_empty_and_single_images(device: torch.device, shape: tuple[int, ...]) -> None:
    compare(device, lambda x, w, b: F.conv2d(x, w, b), (leaf(*shape), leaf(4, 3, 3, 3), leaf(4)), 1e-4)


# Normalizations ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(0, 4), (3, 0), (4,), (5, 3, 4)], ids=str)
def test_statistics_of_layer_norm_have_the_dtype_of_the_input(
    device: torch.device, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    size = shape[-1]
    compare(
        device,
        lambda x, w, b: torch.native_layer_norm(x, [size], w, b, 1e-5),
        (torch.randn(shape).to(dtype), torch.randn(size).to(dtype), None),
    )


def test_layer_norm_of_16_bits_with_parameters_of_32(device: torch.device) -> None:
    x = leaf(6, 8, dtype=torch.bfloat16)
    compare(device, lambda x, w, b: F.layer_norm(x, [8], w, b), (x, leaf(8), leaf(8)), 5e-2)
    y = torch.native_layer_norm(x.detach().to(device), [8], torch.ones(8, device=device), None, 1e-5)
    assert y[1].dtype == y[2].dtype == torch.bfloat16


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_batch_norm_keeps_running_statistics(
    device: torch.device, dtype: torch.dtype, training: bool, layout: torch.memory_format
) -> None:
    x = torch.randn(4, 3, 5, 5).to(dtype).contiguous(memory_format=layout).requires_grad_()
    for parameters in {dtype, torch.float32}:

        def run(x: Any, w: Any, b: Any, mean: Any, var: Any) -> Any:
            return F.batch_norm(x, mean, var, w, b, training), mean, var

        arguments = (x, leaf(3, dtype=parameters), leaf(3, dtype=parameters))
        statistics = (torch.zeros(3, dtype=parameters), torch.ones(3, dtype=parameters))
        compare(device, run, arguments + statistics, 5e-2 if dtype is torch.bfloat16 else 1e-5)


def test_every_batch_norm_operator(device: torch.device) -> None:
    x, w, b, mean, var = torch.randn(4, 3, 5), torch.rand(3), torch.rand(3), torch.zeros(3), torch.ones(3)

    def column(i: int) -> torch.Tensor:
        return x[:, :, i : i + 1].contiguous()

    calls: list[tuple[Function, tuple[Any, ...]]] = [
        (
            lambda *arguments: (aten._native_batch_norm_legit(*arguments, True, 0.1, 1e-5), arguments[3:]),
            (x, w, b, mean, var),
        ),
        (lambda *arguments: aten._native_batch_norm_legit.no_stats(*arguments, True, 0.1, 1e-5), (x, w, b)),
        (
            lambda *arguments: (aten._batch_norm_with_update(*arguments, 0.1, 1e-5), arguments[3:]),
            (x, w, b, mean, var),
        ),
        (lambda *arguments: (aten.batch_norm_update_stats(*arguments, 0.1), arguments[1:]), (x, mean, var)),
        (
            lambda *arguments: aten.native_batch_norm_backward(*arguments, True, 1e-5, [True, False, True]),
            (x, x, w, None, None, mean, var),
        ),
        (
            lambda *arguments: aten.native_group_norm_backward(*arguments, 4, 3, 5, 1, [True, True, False]),
            (x, x, column(0)[:, :1, 0].contiguous(), column(1)[:, :1, 0].contiguous(), w),
        ),
        (
            lambda grad, x, mean, rstd: aten.native_layer_norm_backward(
                grad, x, [5], mean, rstd, None, None, [True, False, False]
            ),
            (x, x, column(0), column(1)),
        ),
    ]
    for operator, arguments in calls:
        compare(device, operator, arguments)


# Embeddings ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_embedding_bags(device: torch.device, dtype: torch.dtype, mode: str) -> None:
    indices = torch.tensor([1, 2, 4, 5, 4, 3, 2, 9])
    for padding_idx, last, weighted in itertools.product((None, 2), (False, True), (False, True)):
        if weighted and mode != "sum":
            continue
        offsets = torch.tensor([0, 4, 4, 8] if last else [0, 4, 4])

        def run(
            weight: Any, indices: Any, offsets: Any, scales: Any, padding: int | None = padding_idx, last: bool = last
        ) -> Any:
            return F.embedding_bag(
                indices,
                weight,
                offsets,
                mode=mode,
                per_sample_weights=scales,
                include_last_offset=last,
                padding_idx=padding,
            )

        scales = leaf(8, dtype=dtype) if weighted else None
        tolerance = 5e-2 if dtype is torch.bfloat16 else 1e-5
        for weight in (leaf(10, 4, dtype=dtype), torch.randn(10, 4).to(dtype)):
            compare(device, run, (weight, indices, offsets, scales), tolerance)


@pytest.mark.parametrize("mode", ["sum", "mean"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_gradients_of_bags_are_divided_by_how_often_their_row_is_used(
    device: torch.device, dtype: torch.dtype, mode: str
) -> None:
    """The CPU's kernel divides by the count of another row."""
    indices, offsets = torch.tensor([2, 2, 2, 1, 0, 4, 4]), torch.tensor([0, 3, 5])
    weight = torch.ones(5, 2, dtype=dtype, device=device, requires_grad=True)
    F.embedding_bag(indices.to(device), weight, offsets.to(device), mode=mode, scale_grad_by_freq=True).sum().backward()
    share = torch.tensor([1 / 3] * 3 + [1 / 2] * 4 if mode == "mean" else [1.0] * 7, dtype=torch.float64)
    sums = torch.zeros(5, dtype=torch.float64).index_add_(0, indices, share)
    expected = (sums / indices.bincount(minlength=5).clamp_min(1)).to(dtype)
    assert weight.grad is not None
    torch.testing.assert_close(weight.grad.cpu(), expected[:, None].expand(5, 2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_whose_offsets_descend_are_refused(device: torch.device, mode: str, dtype: torch.dtype) -> None:
    weight = torch.ones(5, 2, dtype=dtype, device=device)
    with pytest.raises(RuntimeError, match=r"offsets must not descend, but offsets\[1\] is 2 and offsets\[2\] is 1"):
        F.embedding_bag(
            torch.tensor([1, 2, 3], device=device), weight, torch.tensor([0, 2, 1], device=device), mode=mode
        ).cpu()


@pytest.mark.parametrize("indices", [torch.tensor([[1, 2], [2, 0]]), torch.tensor(3), torch.empty(0).long()], ids=str)
def test_embeddings(device: torch.device, indices: torch.Tensor) -> None:
    for index in (indices, indices.int()):
        compare(device, lambda w, i: F.embedding(i, w, padding_idx=1), (leaf(5, 3), index))


def test_embedding_renormalizes_its_weight(device: torch.device) -> None:
    compare(device, lambda w, i: (F.embedding(i, w, max_norm=1.0), w), (torch.randn(5, 3), torch.tensor([1, 2, 1])))


def test_an_index_out_of_range_is_raised_when_the_device_synchronizes(device: torch.device) -> None:
    F.embedding(torch.tensor([7], device=device), torch.randn(5, 3, device=device))
    with pytest.raises(IndexError, match="embedding"):
        torch.mtia.synchronize()


# Attention -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("queries", "keys"), [(5, 5), (33, 70), (1, 600)])
@pytest.mark.parametrize("kind", ["plain", "causal", "bool mask", "float mask", "scale", "grouped", "transposed"])
def test_fused_attention(device: torch.device, kind: str, queries: int, keys: int, dtype: torch.dtype) -> None:
    heads = 2 if kind == "grouped" else 4
    query = leaf(2, 4, queries, 8, dtype=dtype)
    if kind == "transposed":
        query = torch.randn(2, queries, 4, 8).to(dtype).transpose(1, 2).requires_grad_()
    mask = None
    if kind == "bool mask":
        mask = torch.rand(queries, keys) < 0.7
        mask[:, 0] = True
    elif kind == "float mask":
        mask = torch.randn(2, 1, queries, keys).to(dtype)

    def run(query: Any, key: Any, value: Any, mask: Any) -> Any:
        return F.scaled_dot_product_attention(
            query,
            key,
            value,
            mask,
            is_causal=kind == "causal",
            scale=0.3 if kind == "scale" else None,
            enable_gqa=kind == "grouped",
        )

    key, value = (leaf(2, heads, keys, 8, dtype=dtype) for _ in range(2))
    compare(device, run, (query, key, value, mask), 5e-2 if dtype is torch.bfloat16 else 1e-5)


def test_which_attention_is_fused(device: torch.device) -> None:
    query = torch.randn(2, 4, 5, 8, device=device)
    mask = torch.zeros(5, 5, device=device, requires_grad=True)
    fused, math = int(torch.nn.attention.SDPBackend.OVERRIDEABLE.value), int(torch.nn.attention.SDPBackend.MATH.value)
    assert torch._fused_sdp_choice(query, query, query) == fused
    assert torch._fused_sdp_choice(query, query, query, dropout_p=0.5) == math
    assert torch._fused_sdp_choice(query, query, query, mask) == math
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        assert torch._fused_sdp_choice(query, query, query) == math


# Poolings ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gradient_is_channels_last", [False, True])
def test_max_pool3d_of_one_volume_lays_out_its_results_as_on_the_cpu(
    device: torch.device, gradient_is_channels_last: bool
) -> None:
    x = torch.randn(1, 3, 4, 4, 4).contiguous(memory_format=torch.channels_last_3d)[0]
    pool = ([2, 2, 2], [2, 2, 2], [0, 0, 0], [1, 1, 1], False)
    output, indices = aten.max_pool3d_with_indices(x, *pool)
    results = aten.max_pool3d_with_indices(x.to(device), *pool)
    grad = torch.ones_like(output) if gradient_is_channels_last else torch.ones(output.shape)
    expected = aten.max_pool3d_with_indices_backward(grad, x, *pool, indices)
    actual = aten.max_pool3d_with_indices_backward(grad.to(device), x.to(device), *pool, results[1])
    for result, reference in zip((*results, actual), (output, indices, expected), strict=True):
        assert result.stride() == reference.stride()
        assert torch.equal(result.cpu(), reference)


# Errors --------------------------------------------------------------------------------------------------------------

WRONG: dict[str, tuple[Function, Sequence[Any]]] = {
    "conv2d channels": (F.conv2d, (torch.randn(1, 3, 5, 5), torch.randn(4, 2, 3, 3))),
    "conv2d kernel": (F.conv2d, (torch.randn(1, 3, 2, 2), torch.randn(4, 3, 3, 3))),
    "conv2d dtypes": (F.conv2d, (torch.randn(1, 3, 5, 5), torch.randn(4, 3, 3, 3).double())),
    "conv2d dilation": (
        lambda x, w: F.conv2d(x, w, padding=1, dilation=0),
        (torch.randn(1, 3, 5, 5), torch.randn(4, 3, 3, 3)),
    ),
    "conv_transpose2d dilation": (
        lambda x, w: F.conv_transpose2d(x, w, dilation=0),
        (torch.randn(1, 3, 5, 5), torch.randn(3, 4, 3, 3)),
    ),
    "conv_transpose2d padding": (
        lambda x, w: F.conv_transpose2d(x, w, padding=4),
        (torch.randn(1, 3, 2, 2), torch.randn(3, 4, 3, 3)),
    ),
    "conv_transpose2d output_padding": (
        lambda x, w: F.conv_transpose2d(x, w, output_padding=3),
        (torch.randn(1, 3, 2, 2), torch.randn(3, 4, 3, 3)),
    ),
    "convolution_backward": (
        lambda g, x, w: aten.convolution_backward(g, x, w, None, [1], [0], [1], False, [0], 1, [True, True, False]),
        (torch.randn(1, 4, 5), torch.randn(1, 3, 5), torch.randn(4, 3, 3)),
    ),
    "conv_transpose2d channels": (F.conv_transpose2d, (torch.randn(1, 3, 5, 5), torch.randn(2, 3, 3, 3))),
    "layer_norm shape": (lambda x: F.layer_norm(x, [3]), (torch.randn(2, 4),)),
    "layer_norm dtype": (lambda x: torch.native_layer_norm(x, [4], None, None, 1e-5), (torch.ones(2, 4).long(),)),
    "group_norm": (lambda x: torch.native_group_norm(x, None, None, 2, 3, 4, 2, 1e-5), (torch.randn(2, 3, 4),)),
    "batch_norm weight": (
        lambda x, w: F.batch_norm(x, None, None, w, training=True),
        (torch.rand(2, 3), torch.rand(4)),
    ),
    "embedding weight": (lambda w, i: F.embedding(i, w), (torch.randn(5), torch.tensor([1]))),
    "embedding index": (lambda w, i: F.embedding(i, w), (torch.randn(5, 2), torch.tensor([1.0]))),
    "embedding_bag": (
        lambda w, i, o: aten._embedding_bag(w, i, o),
        (torch.randn(5, 2), torch.tensor([1.0]), torch.tensor([0])),
    ),
    "attention heads": (
        lambda q, k: (
            aten._scaled_dot_product_flash_attention_for_cpu(q, k, k)
            if q.is_cpu
            else aten._scaled_dot_product_fused_attention_overrideable(q, k, k)
        ),
        (torch.randn(2, 4, 5, 8), torch.randn(2, 4, 5, 7)),
    ),
    "nll_loss2d": (lambda x, t: aten.nll_loss2d_forward(x, t, None, 1, -1), (torch.rand(2, 3, 4, 4), torch.ones(2, 4))),
    "binary_cross_entropy": (
        lambda x, t: aten.binary_cross_entropy(x, t),
        (torch.rand(3), torch.rand(4)),
    ),
    "binary_cross_entropy weight": (
        lambda x, w: aten.binary_cross_entropy(x, x, w),
        (torch.rand(5, 5), torch.rand(6)),
    ),
    "binary_cross_entropy_backward weight": (
        lambda x, w: aten.binary_cross_entropy_backward(x, x, x, w, 0),
        (torch.rand(5, 5), torch.rand(6)),
    ),
    "huber delta": (lambda x: F.huber_loss(x, x, delta=-1.0), (torch.rand(3),)),
    "multi_margin p": (lambda x, t: F.multi_margin_loss(x, t, p=3), (torch.rand(2, 3), torch.tensor([0, 1]))),
    "multilabel": (lambda x, t: F.multilabel_margin_loss(x, t), (torch.rand(2, 3), torch.ones(2, 4).long())),
    "ctc blank": (
        lambda x, t: aten._ctc_loss(x, t, [3, 3], [1, 1], 9),
        (torch.rand(3, 2, 4), torch.ones(2, 1).long()),
    ),
    "ctc lengths": (
        lambda x, t: aten._ctc_loss(x, t, [3, 4], [1, 1], 0),
        (torch.rand(3, 2, 4), torch.ones(2, 1).long()),
    ),
    "glu_backward": (lambda x: aten.glu_backward(x, x, 0), (torch.rand(3),)),
    "adaptive pool": (lambda x: aten._adaptive_avg_pool2d(x, [2, 2]), (torch.rand(3, 3),)),
    "max_pool3d padding": (lambda x: F.max_pool3d(x, 2, padding=2), (torch.rand(1, 1, 4, 4, 4),)),
    "max_pool3d size": (lambda x: F.max_pool3d(x, 5), (torch.rand(1, 1, 4, 4, 4),)),
    "max_pool3d of one volume laid out as a batch of images": (
        lambda x: F.max_pool3d(x, 2),
        (torch.rand(3, 4, 4, 4).contiguous(memory_format=torch.channels_last),),
    ),
    "max_unpool2d": (
        lambda x, i: aten.max_unpool2d(x, i, [4, 4]),
        (torch.rand(1, 1, 2, 2), torch.ones(1, 1, 2, 3).long()),
    ),
    "unfold": (lambda x: F.unfold(x, 5), (torch.rand(1, 1, 3, 3),)),
    "fold": (lambda x: F.fold(x, (4, 4), 2), (torch.rand(1, 4, 8),)),
    "grid": (lambda x, g: F.grid_sample(x, g), (torch.rand(1, 1, 3, 3), torch.rand(1, 2, 2, 3))),
    "reflection": (lambda x: F.pad(x, (3, 3, 0, 0), mode="reflect"), (torch.rand(1, 1, 3, 3),)),
    "layer_norm_backward without a weight": (
        lambda x, m: aten.native_layer_norm_backward(x, x, [4], m, m, None, None, [True, True, True]),
        (torch.rand(2, 4), torch.rand(2, 1)),
    ),
    "embedding without rows": (lambda w, i: F.embedding(i, w), (torch.rand(0, 4), torch.tensor([0]))),
    "index_select of nothing": (lambda x, i: x.index_select(0, i), (torch.rand(0, 4), torch.tensor([0]))),
    "index_fill_": (lambda x, i: x.index_fill_(0, i, 1.0), (torch.rand(3, 3), torch.tensor([[1]]))),
    "put_": (lambda x, i: x.put_(i, x), (torch.rand(3), torch.tensor([1]))),
    "masked_scatter_": (lambda x, m, y: x.masked_scatter_(m, y), (torch.rand(3), torch.ones(3).bool(), torch.rand(2))),
    "cdist columns": (lambda x, y: aten._cdist_forward(x, y, 2.0, None), (torch.rand(3, 4), torch.rand(3, 5))),
    "cdist p": (lambda x: aten._cdist_forward(x, x, -1.0, None), (torch.rand(3, 4),)),
    "pdist": (lambda x: aten._pdist_forward(x, 2.0), (torch.rand(3),)),
    "pdist of transposed rows": (lambda x: aten._pdist_forward(x.t(), 2.0), (torch.rand(4, 3),)),
    "pdist_backward of transposed rows": (
        lambda g, x: aten._pdist_backward(g, x.t(), 2.0, g),
        (torch.rand(3), torch.rand(4, 3)),
    ),
    "unfold_backward": (lambda x: aten.unfold_backward(x, [4, 3], 0, 2, 1), (torch.rand(3, 2, 2),)),
    "unfold_backward dim": (lambda x: aten.unfold_backward(x, [4], 3, 2, 1), (torch.rand(3, 2),)),
}


TAKEN_SINCE_2_14: dict[str, tuple[Function, Sequence[Any]]] = {
    "group_norm_backward of a bias without a weight": (
        lambda x, m: aten.native_group_norm_backward(x, x, m, m, None, 2, 4, 3, 2, [True, False, True]),
        (torch.rand(2, 4, 3), torch.rand(2, 2)),
    ),
    "group_norm_backward without a weight": (
        lambda x, m: aten.native_group_norm_backward(x, x, m, m, None, 2, 4, 3, 2, [True, True, True]),
        (torch.rand(2, 4, 3), torch.rand(2, 2)),
    ),
    "group_norm of a transposed input": (
        lambda x: torch.native_group_norm(x.transpose(0, 1), None, None, 6, 4, 5, 2, 1e-5),
        (torch.rand(4, 6, 5),),
    ),
}
"""Refused by older versions."""
if torch_version.TORCH < (2, 14):
    WRONG |= TAKEN_SINCE_2_14


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments_raise_at_the_call_what_the_cpu_raises(device: torch.device, name: str) -> None:
    function, arguments = WRONG[name]
    with pytest.raises((RuntimeError, ValueError, NotImplementedError, IndexError)) as expected:
        function(*arguments)
    with pytest.raises(type(expected.value)) as actual, torch_mtia.fallback.forbid():
        function(*on(device, arguments))
    assert str(actual.value) == str(expected.value)
    torch.mtia.synchronize()


@pytest.mark.skipif(torch_version.TORCH < (2, 14), reason="this PyTorch refuses these arguments")
@pytest.mark.parametrize("name", TAKEN_SINCE_2_14)
def test_arguments_that_older_versions_refuse(device: torch.device, name: str) -> None:
    compare(device, *TAKEN_SINCE_2_14[name])


# PyTorch's samples ---------------------------------------------------------------------------------------------------


def name_of(info: OpInfo) -> str:
    name = f"{info.name}.{info.variant_test_name}" if info.variant_test_name else info.name
    prefix = "nn.functional."
    return name.removeprefix(prefix) if name.startswith(prefix) else f"torch.{name}"


IN_16_BITS_ON_THE_CPU = [
    f"nn.functional.{name}" for name in ("conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "grid_sample")
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("info", [pytest.param(info, id=name_of(info)) for info in op_db if name_of(info) in OPERATORS])
def test_samples(device: torch.device, info: OpInfo, dtype: torch.dtype) -> None:
    if dtype not in info.supported_dtypes("cpu"):
        pytest.skip(f"the CPU has no {info.name} of {dtype}")
    if info.name in IN_16_BITS_ON_THE_CPU and dtype is torch.bfloat16:
        pytest.skip("the CPU accumulates, or computes coordinates, in 16 bits; test_accumulation.py has float64 judge")
    differentiable = dtype in info.supported_backward_dtypes("cpu")
    tolerance = 5e-2 if dtype is torch.bfloat16 else 1e-4
    compared = 0
    for sample in islice(info.sample_inputs("cpu", dtype, requires_grad=differentiable), MOST_SAMPLES):
        if sample.kwargs.get("dropout_p", 0.0) > 0.0 or sample.kwargs.get("sparse"):
            continue
        compare(
            device,
            lambda x, args, kwargs: info.op(x, *args, **kwargs),
            (sample.input, sample.args, sample.kwargs),
            tolerance,
        )
        compared += 1
    assert compared > 0


def test_the_samples_are_of_operators_that_exist() -> None:
    assert set(OPERATORS) <= {name_of(info) for info in op_db}


@pytest.mark.parametrize("inner_k_tiles", [2, 4, 8])
def test_products_with_weights_of_4_bits(device: torch.device, inner_k_tiles: int) -> None:
    """In the shapes of CUDA's kernels: numbers 0 to 15 in groups of a row, each with a scale and a zero point."""
    n, k, group = 48, 256, 64
    numbers = torch.randint(16, (n, k))
    scales, zeros = torch.rand(2, k // group, n).bfloat16().unbind()
    weight = (numbers - 8).view(n, -1, group) * scales.t()[..., None].float() + zeros.t()[..., None].float()
    bytes_of_weight = (numbers[:, ::2] << 4 | numbers[:, 1::2]).to(torch.uint8).to(device)
    packed = torch._convert_weight_to_int4pack(bytes_of_weight, inner_k_tiles)
    assert packed.shape == (n // 8, k // (inner_k_tiles * 16), 32, inner_k_tiles // 2)
    x = torch.randn(5, k).bfloat16()
    scales_and_zeros = torch.stack([scales, zeros], -1).to(device)
    result = torch._weight_int4pack_mm(x.to(device), packed, group, scales_and_zeros)
    torch.testing.assert_close(result.cpu(), x @ weight.view(n, k).bfloat16().t())
    with pytest.raises(RuntimeError, match="qGroupSize"):
        torch._weight_int4pack_mm(x.to(device), packed, 48, scales_and_zeros)
    with pytest.raises(RuntimeError, match="does not fit a weight"):
        torch._weight_int4pack_mm(x[:, :64].to(device), packed, group, scales_and_zeros)
    with pytest.raises(RuntimeError, match="innerKTiles"):
        torch._convert_weight_to_int4pack(bytes_of_weight, 3)


@pytest.mark.parametrize("transposed", [False, True], ids=["", "transposed"])
@pytest.mark.parametrize("weight_last", [False, True], ids=["", "weight with channels last"])
@pytest.mark.parametrize("image_last", [False, True], ids=["", "image with channels last"])
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("dims", [2, 3])
def test_the_meta_function_of_convolutions_lays_out_what_the_kernel_does(
    device: torch.device, dims: int, batch: int, image_last: bool, weight_last: bool, transposed: bool
) -> None:
    """Compiled code asserts it."""
    last = torch.channels_last if dims == 2 else torch.channels_last_3d
    x = torch.randn(batch, 3, *(4,) * dims, device=device)
    weight = torch.randn(3, 3, *(3,) * dims, device=device)
    x = x.to(memory_format=last) if image_last else x
    weight = weight.to(memory_format=last) if weight_last else weight
    ones, none = [1] * dims, [0] * dims
    result = torch.convolution(x, weight, None, ones, none, ones, transposed, none, 1)
    with FakeTensorMode() as mode:
        fake_x, fake_weight = mode.from_tensor(x), mode.from_tensor(weight)
        fake = torch.convolution(fake_x, fake_weight, None, ones, none, ones, transposed, none, 1)
    assert fake.stride() == result.stride()
