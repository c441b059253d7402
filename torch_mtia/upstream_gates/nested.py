"""Replacements for nested tensors: attention over jagged ones, and what would make others."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from torch_mtia.backend import device_type


def attending_by_sequence(original: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Takes (batch, heads, ragged length, head dim); the call waits for the lengths, as upstream's path does that makes
    strided nested tensors. Causal masks, narrowed tensors and grouped queries, which that path refuses, work as in the
    fused kernels of CUDA."""

    def jagged_scaled_dot_product_attention(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> torch.Tensor:
        from torch.nested._internal import sdpa

        options: dict[str, Any] = {
            "dropout_p": dropout_p,
            "is_causal": is_causal,
            "scale": scale,
            "enable_gqa": enable_gqa,
        }
        sequences_of_heads = all(t.dim() == 4 and getattr(t, "_ragged_idx", None) == 2 for t in (query, key, value))
        if query.device.type != device_type() or not sequences_of_heads:
            return original(query, key, value, attn_mask=attn_mask, **options)
        query, key, value, attn_mask = sdpa._autocast(query, key, value, attn_mask)
        sdpa._validate_sdpa_input(query, key, value, attn_mask, dropout_p, is_causal, scale)
        if len(numbers := {tensor.size(0) for tensor in (query, key, value)}) > 1:
            raise ValueError(f"query, key and value are batches of one number of sequences, not of {sorted(numbers)}")
        ragged: Any = query.transpose(1, 2)
        sequences = zip(*(tensor.transpose(1, 2).unbind() for tensor in (query, key, value)), strict=True)
        attend = functools.partial(scaled_dot_product_attention, **options)
        attended = [
            attend(*(sequence.transpose(0, 1).unsqueeze(0) for sequence in triple)).squeeze(0).transpose(0, 1)
            for triple in sequences
        ]
        values = torch.cat(attended)
        if len(values) != len(ragged.values()):  # there are rows between the sequences
            places = zip(ragged.offsets().tolist(), attended, strict=False)
            rows = torch.cat([torch.arange(start, start + len(part)) for start, part in places]).to(values.device)
            values = values.new_zeros(len(ragged.values()), *values.shape[1:]).index_copy(0, rows, values)
        out: torch.Tensor = torch.nested._internal.nested_tensor.nested_view_from_values_offsets_lengths(
            values,
            ragged.offsets(),
            ragged.lengths(),
            min_seqlen=ragged._maybe_min_seqlen,
            max_seqlen=ragged._maybe_max_seqlen,
        )
        return out.transpose(1, 2)

    return jagged_scaled_dot_product_attention


def padded_as_it_is(original: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def forward(self: torch.nn.TransformerEncoder, src: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if src.device.type != device_type() or not self.use_nested_tensor:
            return original(self, src, *args, **kwargs)
        self.use_nested_tensor = False
        try:
            return original(self, src, *args, **kwargs)
        finally:
            self.use_nested_tensor = True

    return forward
