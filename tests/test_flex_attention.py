"""FlexAttention: every mask, score and layout gives what attention over the whole matrix of scores gives."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention.experimental._paged_attention import PagedAttention
from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, create_mask, flex_attention

from tests.compiled import generated, kernels

Tensor = torch.Tensor
CPU = torch.device("cpu")


def on_device(*shape: int, **options: Any) -> Tensor:
    return torch.randn(shape).to("mtia", **options)


def attention(operands: tuple[Tensor, ...], mask: Tensor, scores_of: Any = None) -> tuple[Tensor, Tensor]:
    """Over the whole matrix of scores: 0 for queries that may not see any key. And logsumexp."""
    query, key, value = operands
    groups = query.shape[1] // key.shape[1]
    key, value = (each.repeat_interleave(groups, 1) for each in (key, value))
    scores = query @ key.mT / query.shape[-1] ** 0.5
    scores = (scores if scores_of is None else scores_of(scores)).masked_fill(~mask, -torch.inf)
    return scores.softmax(-1).nan_to_num(0) @ value, scores.logsumexp(-1)


def copies_on_the_cpu(tensors: tuple[Tensor, ...]) -> Any:
    return tuple(each.detach().cpu().double().requires_grad_(each.requires_grad) for each in tensors)


def assert_close(actual: Any, expected: Any) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4, check_device=False, check_dtype=False)


# Masks ----------------------------------------------------------------------------------------------------------------

WINDOW = 16


@dataclasses.dataclass(frozen=True)
class Masked:
    """Which keys a query sees. `offset` is the place of the first query among the keys."""

    queries: int
    keys: int
    sees: Callable[[Tensor, Tensor], Tensor]
    offset: int = 0
    heads: int = 2

    def __call__(self, _batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return self.sees(query + self.offset, key)


def before(query: Tensor, key: Tensor) -> Tensor:
    return (key <= query) & (query - key <= WINDOW)


def around(query: Tensor, key: Tensor) -> Tensor:
    return (query - key).abs() <= WINDOW


MASKS = {
    "causal": Masked(128, 128, lambda query, key: query >= key),
    "a window": Masked(130, 130, before),
    "a window to both sides": Masked(300, 300, around),
    "the last queries": Masked(70, 200, before, offset=130),
    "queries before the first key": Masked(200, 64, before, offset=-136),
    "queries behind the last window": Masked(200, 64, before, offset=0),
    "few queries": Masked(4, 300, before, offset=296),
    "few queries, of which some see nothing": Masked(4, 130, before, offset=144),
    "heads that share keys": Masked(130, 130, before, heads=6),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "not compiled"])
@pytest.mark.parametrize("name", MASKS)
def test_masks_and_gradients(name: str, compiled: bool) -> None:
    masked = MASKS[name]
    query = on_device(2, masked.heads, masked.queries, 32).requires_grad_()
    key, value = (on_device(2, 2, masked.keys, 32).requires_grad_() for _ in range(2))
    mask = create_block_mask(masked, None, None, masked.queries, masked.keys, device="mtia")

    def function(query: Tensor, key: Tensor, value: Tensor) -> Any:
        return flex_attention(query, key, value, block_mask=mask, enable_gqa=True, return_aux=AuxRequest(lse=True))

    if compiled:
        (result, aux), code = generated(function, query, key, value, fullgraph=True)
        assert [name for name in kernels(code) if "flex_attention" in name or "flex_decoding" in name]
    else:
        result, aux = function(query, key, value)
    copies = copies_on_the_cpu((query, key, value))
    whole = create_mask(masked, None, None, masked.queries, masked.keys, device="cpu")
    expected = attention(copies, whole)
    assert_close((result, aux.lse), expected)
    blind = ~whole[0, 0].any(-1)
    assert not result[:, :, blind.to("mtia")].any()
    gradient = torch.randn(result.shape)
    gradients = torch.autograd.grad(result, (query, key, value), gradient.to("mtia"))
    assert_close(gradients, torch.autograd.grad(expected[0], copies, gradient.double()))


def test_some_masks_leave_queries_without_keys() -> None:
    """What the tests of such rows rely on."""
    blind = [
        name
        for name, each in MASKS.items()
        if not create_mask(each, None, None, each.queries, each.keys, device="cpu").any(-1).all()
    ]
    assert len(blind) == 3


def test_few_queries_divide_the_keys() -> None:
    query, key, value = on_device(1, 1, 1, 16), on_device(1, 1, 512, 16), on_device(1, 1, 512, 16)
    result, code = generated(flex_attention, query, key, value, fullgraph=True)
    assert_close(result, F.scaled_dot_product_attention(query, key, value))
    processors = torch.mtia.get_device_properties(0)["multi_processor_count"]
    assert f"SPLIT_KV : tl.constexpr = {2 * processors}\n" in code  # one head has them all


def test_documents_of_lengths_that_vary_are_compiled_once() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(flex_attention, fullgraph=True, dynamic=True)
    for length, stance in [(300, "default"), (333, "fail_on_recompile"), (555, "fail_on_recompile")]:
        documents = torch.randint(0, 3, (2, length)).sort(1).values.to("mtia")

        def same(batch: Tensor, _head: Tensor, query: Tensor, key: Tensor, of: Tensor = documents) -> Tensor:
            return (of[batch, query] == of[batch, key]) & (query >= key)

        mask = create_block_mask(same, 2, None, length, length, device="mtia")
        query, key, value = (on_device(2, 2, length, 32) for _ in range(3))
        with torch.compiler.set_stance(stance):
            result = compiled(query, key, value, block_mask=mask)
        whole = create_mask(same, 2, None, length, length, device="mtia")
        assert_close(result, F.scaled_dot_product_attention(query, key, value, attn_mask=whole))


def test_a_mask_is_made_by_compiled_code() -> None:
    masked = MASKS["a window"]
    sizes = (None, None, masked.queries, masked.keys)
    mask, code = generated(lambda: create_block_mask(masked, *sizes, device="mtia"))
    assert kernels(code)
    assert torch.equal(mask.to_dense(), create_block_mask(masked, *sizes, device="mtia").to_dense())


# Scores ---------------------------------------------------------------------------------------------------------------


@pytest.mark.sampled(2)
@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "not compiled"])
def test_scores_with_parameters_that_are_trained(compiled: bool) -> None:
    operands = (
        *(on_device(2, 4, 70, 32).requires_grad_() for _ in range(3)),
        on_device(4).requires_grad_(),
        on_device(70, 70).requires_grad_(),
    )

    def function(query: Tensor, key: Tensor, value: Tensor, slope: Tensor, table: Tensor) -> Tensor:
        def biased(score: Tensor, _batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return score + slope[head] * (i - j) / 70 + table[i, j]

        return flex_attention(query, key, value, score_mod=biased)

    result = generated(function, *operands, fullgraph=True)[0] if compiled else function(*operands)
    *copies, cpu_slope, cpu_table = cpu_operands = copies_on_the_cpu(operands)
    distance = torch.arange(70)[:, None] - torch.arange(70)
    expected, _ = attention(
        copies,
        torch.ones(70, 70, dtype=torch.bool),
        lambda scores: scores + cpu_slope[:, None, None] * distance / 70 + cpu_table,
    )
    assert_close(result, expected)
    gradient = torch.randn(result.shape)
    gradients = torch.autograd.grad(result, operands, gradient.to("mtia"))
    assert_close(gradients, torch.autograd.grad(expected, cpu_operands, gradient.double()))


def test_scores_of_a_function() -> None:
    query, key, value = (on_device(1, 2, 130, 48) for _ in range(3))  # 48 is not a power of two

    def function(query: Tensor, key: Tensor, value: Tensor) -> Any:
        return flex_attention(query, key, value, score_mod=lambda score, *_: 5 * torch.tanh(score / 5))

    everything = torch.ones(130, 130, dtype=torch.bool)
    expected, _ = attention(copies_on_the_cpu((query, key, value)), everything, lambda scores: 5 * (scores / 5).tanh())
    assert_close(generated(function, query, key, value, fullgraph=True)[0], expected)


# What else is returned ------------------------------------------------------------------------------------------------


def test_statistics_are_computed_only_if_they_are_asked_for() -> None:
    query, key, value = (on_device(1, 2, 130, 32) for _ in range(3))

    def function(query: Tensor, key: Tensor, value: Tensor) -> Any:
        return flex_attention(query, key, value, return_aux=AuxRequest(lse=True, max_scores=True))

    with torch.no_grad():
        plain, code = generated(flex_attention, query, key, value, fullgraph=True)
        (result, aux), code_with_statistics = generated(function, query, key, value, fullgraph=True)
    for option in ("OUTPUT_LOGSUMEXP", "OUTPUT_MAX"):
        assert f"{option} : tl.constexpr = False" in code
        assert f"{option} : tl.constexpr = True" not in code
        assert f"{option} : tl.constexpr = True" in code_with_statistics
    assert isinstance(plain, Tensor)
    scores = query @ key.mT / 32**0.5
    assert_close((result, aux.lse, aux.max_scores), (plain, scores.logsumexp(-1), scores.amax(-1)))


# Keys and values in pages ---------------------------------------------------------------------------------------------


@pytest.mark.sampled(4)
@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "not compiled"])
@pytest.mark.parametrize("queries", [256, 1])
def test_keys_in_pages(queries: int, compiled: bool) -> None:
    batch, heads, length, page = 2, 2, 256, 64
    pages = PagedAttention(16, page, batch, device="mtia")
    for wanted in (64, 256):  # one sequence's pages between those of the other
        for sequence in range(batch):
            pages.reserve(torch.tensor(sequence, device="mtia"), torch.tensor(wanted, device="mtia"))
    query, key, value = on_device(batch, 4, queries, 32), *(on_device(batch, heads, length, 32) for _ in range(2))
    key_pages, value_pages = (torch.zeros(1, heads, 16 * page, 32, device="mtia") for _ in range(2))
    places = torch.arange(length, device="mtia").expand(batch, length)
    pages.assign(torch.arange(batch, device="mtia"), places, key, value, key_pages, value_pages)
    lengths = torch.tensor([200, 77], device="mtia")

    def sees(_batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return query + length - queries >= key

    logical = create_block_mask(sees, batch, None, queries, length, BLOCK_SIZE=page, device="mtia")
    mask = pages.convert_logical_block_mask(logical, kv_len=lengths)
    biased = pages.get_score_mod(lambda score, _batch, _head, query, key: score + (query - key) / 100, lengths)

    def function(query: Tensor, key: Tensor, value: Tensor) -> Any:
        return flex_attention(query, key, value, block_mask=mask, score_mod=biased, enable_gqa=True)

    operands = query, key_pages, value_pages
    result = generated(function, *operands, fullgraph=True)[0] if compiled else function(*operands)
    last = torch.arange(length - queries, length)[:, None]
    whole = (last >= torch.arange(length)) & (torch.arange(length) < lengths.cpu()[:, None, None, None])
    distance = torch.arange(queries)[:, None] - torch.arange(length)
    expected, _ = attention(copies_on_the_cpu((query, key, value)), whole, lambda scores: scores + distance / 100)
    assert_close(result, expected)


# Dtypes ---------------------------------------------------------------------------------------------------------------


@pytest.mark.sampled(2)
@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "not compiled"])
def test_autocast_casts_the_operands(compiled: bool) -> None:
    query, key, value = operands = tuple(on_device(1, 2, 70, 32).requires_grad_() for _ in range(3))
    with torch.autocast("mtia", torch.bfloat16):
        if compiled:
            result, _ = generated(flex_attention, query, key, value, fullgraph=True)
        else:
            result = flex_attention(query, key, value)
    assert result.dtype == torch.bfloat16
    short: Any = tuple(each.detach().bfloat16().requires_grad_() for each in operands)
    expected = F.scaled_dot_product_attention(*short)
    torch.testing.assert_close(result, expected, rtol=2e-2, atol=2e-2)
    gradient = torch.randn(result.shape).bfloat16().to("mtia")
    actual = torch.autograd.grad(result, operands, gradient)
    assert {each.dtype for each in actual} == {torch.float32}
    gradients = torch.autograd.grad(expected, short, gradient)
    torch.testing.assert_close(actual, tuple(each.float() for each in gradients), rtol=5e-2, atol=5e-2)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_short_dtypes(dtype: torch.dtype) -> None:
    operands = tuple(on_device(1, 2, 130, 64, dtype=dtype).requires_grad_() for _ in range(3))
    result, _ = generated(flex_attention, *operands, fullgraph=True)
    copies = copies_on_the_cpu(operands)
    expected = F.scaled_dot_product_attention(*copies)
    gradient = torch.randn(result.shape).to(dtype)
    gradients = torch.autograd.grad(result, operands, gradient.to("mtia"))
    limit = 4 * torch.finfo(dtype).eps
    options: dict[str, Any] = {"rtol": limit, "atol": limit, "check_device": False, "check_dtype": False}
    torch.testing.assert_close(result, expected, **options)
    torch.testing.assert_close(gradients, torch.autograd.grad(expected, copies, gradient.double()), **options)


# Transformers ---------------------------------------------------------------------------------------------------------


@pytest.mark.wide
@pytest.mark.filterwarnings("ignore")
def test_transformers_attend_with_it() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=50,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
    )
    tokens = torch.randint(0, 50, (2, 40))
    padding = torch.ones_like(tokens)
    padding[0, :9] = 0
    state: dict[str, Tensor] = {}
    results = []
    for device, implementation in [(CPU, "eager"), (torch.device("mtia"), "flex_attention")]:
        torch.manual_seed(0)
        model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=implementation)
        state = state or {name: value.clone() for name, value in model.state_dict().items()}
        model.load_state_dict(state)
        model.to(device)
        counted = padding.roll(1, 1) * padding  # not the first token: what precedes it is padding, which sees nothing
        labels = tokens.masked_fill(counted == 0, -100).to(device)
        output = model(tokens.to(device), attention_mask=padding.to(device), labels=labels)
        output.loss.backward()
        gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
        results.append((output.loss.detach(), output.logits.detach()[padding == 1], gradients))
    assert_close(results[1], results[0])
