"""Inductor's tests that are in PyTorch's wheel: its database of higher-order operators, compiled for the device."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.testing._internal.hop_db import hop_db
from torch.testing._internal.opinfo.core import OpInfo
from torch.utils import _pytree as pytree

REFUSED = {
    "flex_attention": "its sample has heads of 8 elements: Inductor's kernel takes 16 and more, on every GPU",
    "inline_asm_elementwise": "for CUDA only, by name: RuntimeError 'only supports CUDA tensors'",
    "local_map_hop": "made by autoparallel only: Dynamo refuses to trace the call, on every device",
    "register_hook": "made by compiled autograd only: Dynamo refuses to trace the call, on every device",
}


def test_every_refusal_is_of_an_operator_in_the_database() -> None:
    assert set(REFUSED) <= {info.name for info in hop_db}


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "info",
    [
        pytest.param(info, marks=[pytest.mark.skip(reason=REFUSED[info.name])] if info.name in REFUSED else [])
        for info in hop_db
    ],
    ids=lambda info: f"{info.name}-{info.variant_test_name}",
)
def test_a_higher_order_operator_gives_what_it_gives_on_the_cpu(info: OpInfo, device: torch.device) -> None:
    torch._dynamo.reset()
    of_cpu, sample = (next(iter(info.sample_inputs(where, torch.float32))) for where in ("cpu", device))

    def with_values_of_cpu(ours: Any, theirs: Any) -> Any:
        """A sample's functions keep tensors of their own, where it was made; its other tensors are random."""
        return theirs.detach().to(device) if isinstance(ours, torch.Tensor) else ours

    arguments = pytree.tree_map(with_values_of_cpu, (sample.input, *sample.args), (of_cpu.input, *of_cpu.args))
    with torch.no_grad():
        result = torch.compile(info.op, fullgraph=True)(*arguments)
        expected = info.op(of_cpu.input, *of_cpu.args)
    torch.testing.assert_close(pytree.tree_map_only(torch.Tensor, torch.Tensor.cpu, result), expected)
