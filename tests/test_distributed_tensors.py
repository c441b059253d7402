"""Operators on DTensors, divided in every way, give what they give on whole tensors of the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.nn.functional import _all_gather_base
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.experimental._context_parallel import _attention
from torch.distributed.tensor.parallel import parallelize_module
from torch.nn import functional as F
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from torch_mtia import torch_version
from torch_mtia.backend import device_type
from torch_mtia.ranks import Ranks, StartRanks

RANKS = 4
D = device_type()


@pytest.fixture
def ranks(start_ranks: StartRanks) -> Ranks:
    return start_ranks(RANKS, "mtia")


def whole(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


OPERATORS: dict[str, Callable[[Any], Any]] = {
    "add": lambda x: x * 2 + x,
    "add_": lambda x: x.clone().add_(x),
    "sum": lambda x: x.sum(),
    "sum of rows": lambda x: x.sum(1),
    "mean": lambda x: x.mean(0),
    "max": lambda x: x.max(),
    "argmax": lambda x: x.argmax(0),
    "var": lambda x: x.var(1),
    "norm": lambda x: x.norm(),
    "norm 1": lambda x: torch.norm(x, p=1),
    "norm of columns": lambda x: x.norm(dim=0),
    "foreach norm": lambda x: torch._foreach_norm([x, x])[1],
    "softmax": lambda x: x.softmax(1),
    "logsumexp": lambda x: x.logsumexp(0),
    "layer_norm": lambda x: F.layer_norm(x, (12,)),
    "matmul": lambda x: x @ x.t(),
    "view": lambda x: x.view(4, 2, 12),
    "permute": lambda x: x.permute(1, 0),
    "cat": lambda x: torch.cat([x, x], 1),
    "stack": lambda x: torch.stack([x, x]),
    "slice": lambda x: x[1:3],
    "split": lambda x: x.split(3, 1)[1],
    "sort": lambda x: x.sort(0).values,
    "topk": lambda x: x.topk(2, 1).values,
    "cumsum": lambda x: x.cumsum(0),
    "where": lambda x: torch.where(x > 0, x, -x),
    "bfloat16": lambda x: x.to(torch.bfloat16),
    "mse_loss": lambda x: F.mse_loss(x, x * 2),
}
PLACEMENTS: tuple[Placement, ...] = (Shard(0), Shard(1), Replicate())


def runs(_: int, name: str) -> list[torch.Tensor]:
    mesh = init_device_mesh(D, (RANKS,))
    results = [OPERATORS[name](distribute_tensor(whole(8, 12).to(D), mesh, [placement])) for placement in PLACEMENTS]
    return [result.full_tensor().cpu() for result in results]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", OPERATORS)
def test_operators(ranks: Ranks, name: str) -> None:
    expected = OPERATORS[name](whole(8, 12))
    for results in ranks.run(runs, name):
        torch.testing.assert_close(results, [expected] * len(PLACEMENTS))


REDUCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sum": lambda parts: parts.sum(0),
    "avg": lambda parts: parts.mean(0),
    "max": lambda parts: parts.amax(0),
    "min": lambda parts: parts.amin(0),
}


def redistributes(rank: int) -> None:
    mesh = init_device_mesh(D, (RANKS,))
    for shape in ((8, 6), (7, 5), (3, 2), (1, 9)):
        tensor = whole(*shape)
        for source in PLACEMENTS:
            for target in PLACEMENTS:
                moved = distribute_tensor(tensor.to(D), mesh, [source]).redistribute(placements=[target])
                expected = distribute_tensor(tensor.to(D), mesh, [target]).to_local().cpu()
                torch.testing.assert_close(moved.to_local().cpu(), expected, rtol=0, atol=0)
        for operation in REDUCTIONS:
            partial = DTensor.from_local(whole(*shape, seed=rank).to(D), mesh, [Partial(operation)])
            parts = torch.stack([whole(*shape, seed=other) for other in range(RANKS)])
            expected = {"sum": parts.sum(0), "avg": parts.mean(0), "max": parts.amax(0), "min": parts.amin(0)}[
                operation
            ]
            for target in PLACEMENTS:
                full = partial.redistribute(placements=[target]).full_tensor().cpu()
                torch.testing.assert_close(full, expected)


def test_placements(ranks: Ranks) -> None:
    ranks.run(redistributes)


MASKS = {"causal": (), "of all heads": (4, 4, 6, 6), "of all examples": (1, 1, 6, 6), "of rows": (6, 6)}


def attends(inputs: list[Any], mask: Any) -> list[Any]:
    for tensor in inputs:
        tensor.requires_grad_()
    query, key, value = inputs
    output = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=mask is None)
    output.square().sum().backward()
    return [output.detach(), *(tensor.grad for tensor in inputs)]


def attention_inputs(name: str) -> tuple[list[torch.Tensor], torch.Tensor | None]:
    shape = MASKS[name]
    return [whole(4, 4, 6, 8, seed=seed) for seed in range(3)], whole(*shape, seed=3) if shape else None


def divides_attention(_: int, name: str) -> None:
    expected = attends(*attention_inputs(name))
    line = init_device_mesh(D, (RANKS,))
    for mesh, placements in (
        (line, [Shard(0)]),
        (line, [Shard(1)]),
        (line, [Shard(2)]),
        (line, [Replicate()]),
        (init_device_mesh(D, (2, 2)), [Shard(0), Shard(1)]),
    ):
        inputs, mask = attention_inputs(name)
        divided: list[Any] = [distribute_tensor(tensor.to(D), mesh, placements) for tensor in inputs]
        same = None if mask is None else distribute_tensor(mask.to(D), mesh)
        results = attends(divided, same)
        if placements != [Shard(2)]:  # a sequence is gathered
            assert results[0].placements == tuple(placements)
        torch.testing.assert_close([result.full_tensor().cpu() for result in results], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", MASKS)
def test_attention_is_divided_by_examples_and_heads(ranks: Ranks, name: str) -> None:
    ranks.run(divides_attention, name)


def attends_in_ring(_: int, causal: bool, method: str) -> None:
    """The output and the gradients are those of whole sequences."""
    query, key, value, weight = (whole(2, 3, 16, 8, seed=seed) for seed in range(4))
    expected = attends_causally([query, key, value], weight, causal)
    inputs = [tensor.detach().clone().to(D) for tensor in (query, key, value, weight)]
    mesh = init_device_mesh(D, (RANKS,))
    _attention.set_rotate_method(method)
    _attention._cp_options.enable_load_balance = causal  # upstream has it for causal attention only
    with _attention.context_parallel(mesh, buffers=inputs, buffer_seq_dims=[2] * 4, no_restore_buffers=set(inputs)):
        results = attends_causally(inputs[:3], inputs[3], causal)
        results = _attention.context_parallel_unshard(mesh, results, [2] * 4)
    torch.testing.assert_close([result.cpu() for result in results], expected, rtol=1e-4, atol=1e-5)


def attends_causally(inputs: list[torch.Tensor], weight: torch.Tensor, causal: bool) -> list[Any]:
    for tensor in inputs:
        tensor.requires_grad_()
    query, key, value = inputs
    output = F.scaled_dot_product_attention(query, key, value, is_causal=causal)
    (output * weight).sum().backward()
    return [output.detach(), *(tensor.grad for tensor in inputs)]


@pytest.mark.parametrize("method", ["allgather", "alltoall"])
@pytest.mark.parametrize("causal", [True, False])
def test_attention_of_a_sequence_that_is_divided(ranks: Ranks, causal: bool, method: str) -> None:
    ranks.run(attends_in_ring, causal, method)


class Attends(torch.nn.Module):
    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, block_mask: Any) -> Any:
        return flex_attention(query, key, value, block_mask=block_mask)


def is_causal(_b: torch.Tensor, _h: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    return query >= key


def divides_flex_attention(_: int) -> None:
    length = 128 * RANKS  # a block for each rank
    inputs = [whole(1, 2, length, 16, seed=seed) for seed in range(3)]
    mask = create_block_mask(is_causal, 1, 1, length, length, device="cpu")
    expected = Attends()(*inputs, block_mask=mask)
    mesh = init_device_mesh(D, (RANKS,))
    style = _attention._ContextParallel(seq_dim=2, attention_type=_attention._ContextParallel.AttentionType.FLEX)
    module = parallelize_module(Attends(), mesh, style)
    parts: Any = _attention._context_parallel_shard(mesh, [tensor.to(D) for tensor in inputs], [2] * 3)
    shape: dict[str, Any] = {"B": 1, "H": 1, "Q_LEN": length, "KV_LEN": length}
    if torch_version.TORCH >= (2, 15):
        shape["BLOCK_SIZE"] = (128, 128)
    mask = _attention._create_cp_block_mask(is_causal, **shape, device_mesh=mesh)
    (result,) = _attention.context_parallel_unshard(mesh, [module(*parts, block_mask=mask)], [2])
    torch.testing.assert_close(result.cpu(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.wide
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention_of_a_sequence_that_is_divided(ranks: Ranks) -> None:
    ranks.run(divides_flex_attention)


def gathers(rank: int) -> torch.Tensor:
    tensor = torch.full((3,), float(rank), device=D, requires_grad=True)
    gathered = _all_gather_base(torch.empty(3 * RANKS, device=D), tensor)
    (gathered * torch.arange(3.0 * RANKS, device=D)).sum().backward()
    assert tensor.grad is not None
    return tensor.grad.cpu()


def test_what_is_gathered_has_a_gradient(ranks: Ranks) -> None:
    parts = torch.arange(3.0 * RANKS).chunk(RANKS)
    torch.testing.assert_close(ranks.run(gathers), [part * RANKS for part in parts], rtol=0, atol=0)
