"""Jagged nested tensors: layers, gradients, attention. The reference is the CPU, sequence by sequence."""

from __future__ import annotations

from typing import Any

import pytest
import torch

LENGTHS = (3, 5, 2)


def scaled_dot_product_attention(*inputs: torch.Tensor, **options: Any) -> torch.Tensor:
    query, key, value = inputs
    return torch.nn.functional.scaled_dot_product_attention(query, key, value, **options)


def jagged(sequences: list[torch.Tensor], **options: Any) -> torch.Tensor:
    return torch.nested.nested_tensor(sequences, layout=torch.jagged, device="mtia", **options)


def heads(count: int = 2, lengths: tuple[int, ...] = LENGTHS) -> list[torch.Tensor]:
    """Sequences of (length, heads, 8)."""
    return [torch.randn(length, count, 8) for length in lengths]


def attended(*inputs: list[torch.Tensor], **options: Any) -> list[torch.Tensor]:
    return [
        scaled_dot_product_attention(*(part.transpose(0, 1)[None] for part in parts), **options)[0].transpose(0, 1)
        for parts in zip(*inputs, strict=True)
    ]


def test_layers_and_their_gradients() -> None:
    sequences = [torch.randn(length, 16) for length in LENGTHS]
    reference = torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.ReLU(), torch.nn.LayerNorm(8))
    model = torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.ReLU(), torch.nn.LayerNorm(8))
    model.load_state_dict(reference.state_dict())
    model.to("mtia")
    out = model(jagged(sequences))
    expected = reference(torch.cat(sequences))
    torch.testing.assert_close(out.values().cpu(), expected)
    gradients = torch.autograd.grad(out.values().square().sum(), list(model.parameters()))
    references = torch.autograd.grad(expected.square().sum(), list(reference.parameters()))
    for gradient, other in zip(gradients, references, strict=True):
        torch.testing.assert_close(gradient.cpu(), other)


@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"scale": 0.25}], ids=str)
def test_attention_over_sequences_of_their_own_lengths(options: dict[str, Any]) -> None:
    inputs = [heads() for _ in range(3)]
    leaves = [jagged(sequences, requires_grad=True) for sequences in inputs]
    out = scaled_dot_product_attention(*(leaf.transpose(1, 2) for leaf in leaves), **options)
    for sequences in inputs:
        for sequence in sequences:
            sequence.requires_grad_()
    expected = attended(*inputs, **options)
    torch.testing.assert_close(out.transpose(1, 2).values().cpu(), torch.cat(expected))
    gradients = torch.autograd.grad(out.values().square().sum(), leaves)
    for gradient, sequences in zip(gradients, inputs, strict=True):
        references = torch.autograd.grad(torch.cat(expected).square().sum(), sequences, retain_graph=True)
        torch.testing.assert_close(gradient.values().cpu(), torch.cat(references))


def test_attention_of_queries_to_longer_keys_in_fewer_heads() -> None:
    query, key, value = heads(4), heads(2, (4, 1, 7)), heads(2, (4, 1, 7))
    tensors = (jagged(sequences).transpose(1, 2) for sequences in (query, key, value))
    out = scaled_dot_product_attention(*tensors, enable_gqa=True)
    expected = attended(query, key, value, enable_gqa=True)
    torch.testing.assert_close(out.transpose(1, 2).values().cpu(), torch.cat(expected))


def test_attention_of_an_empty_sequence() -> None:
    sequences = heads(lengths=(0, 3))
    tensor = jagged(sequences).transpose(1, 2)
    out = scaled_dot_product_attention(tensor, tensor, tensor)
    torch.testing.assert_close(out.transpose(1, 2).values().cpu(), attended(*[sequences] * 3)[1])


def test_attention_over_parts_of_a_padded_batch() -> None:
    batch = torch.randn(3, 6, 2, 8)
    starts, lengths = torch.tensor([0, 1, 2]), torch.tensor([3, 5, 2])
    narrowed = torch.nested.narrow(batch.to("mtia"), 1, starts.to("mtia"), lengths.to("mtia"), layout=torch.jagged)
    tensor = narrowed.transpose(1, 2)
    out = scaled_dot_product_attention(tensor, tensor, tensor) + tensor
    sequences = [row[start : start + length] for row, start, length in zip(batch, starts, lengths, strict=True)]
    expected = attended(*[sequences] * 3)
    for part, other, sequence in zip(out.transpose(1, 2).unbind(), expected, sequences, strict=True):
        torch.testing.assert_close(part.cpu(), other + sequence)


def test_attention_under_autocast_and_compiled() -> None:
    sequences = heads()
    tensor = jagged(sequences).transpose(1, 2)
    with torch.autocast("mtia", torch.bfloat16):
        assert scaled_dot_product_attention(tensor, tensor, tensor).dtype == torch.bfloat16
    compiled = torch.compile(lambda x: scaled_dot_product_attention(x, x, x).transpose(1, 2) * 2)
    torch.testing.assert_close(compiled(tensor).values().cpu(), 2 * torch.cat(attended(*[sequences] * 3)))


def test_batches_of_another_number_of_sequences_are_refused() -> None:
    query, key = jagged(heads()).transpose(1, 2), jagged(heads(lengths=(3, 5))).transpose(1, 2)
    with pytest.raises(ValueError, match=r"not of \[2, 3\]"):
        scaled_dot_product_attention(query, key, key)
