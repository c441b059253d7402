"""Language models of transformers train on several ranks, divided in every way, as one process trains them on the CPU.

Losses are float32 of sums in another order: sums of a hundred terms or so, each with a relative error of 6e-8 for a
term, in some ten layers and a few steps. What is allowed is 1e-5.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import transformers
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from torch_mtia.backend import device_type
from torch_mtia.ranks import Ranks, StartRanks

RANKS = 4
TOLERANCE = 1e-5
STEPS, BATCH, TOKENS, VOCABULARY = 4, 4, 16, 64
D = device_type()


@pytest.fixture
def ranks(start_ranks: StartRanks) -> Ranks:
    return start_ranks(RANKS, "mtia")


def llama() -> Any:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        bos_token_id=0,
        eos_token_id=None,
        pad_token_id=0,
    )
    return transformers.LlamaForCausalLM(config)


def text() -> torch.Tensor:
    return torch.randint(VOCABULARY, (STEPS, BATCH, TOKENS + 1), generator=torch.Generator().manual_seed(1))


def train(model: nn.Module, batches: torch.Tensor) -> list[float]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, foreach=False)  # some are divided, some are not
    losses = []
    for batch in batches:
        logits = model(input_ids=batch[:, :-1], use_cache=False).logits
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return [float(loss) for loss in losses]


PLAN = {
    "model.embed_tokens": RowwiseParallel(input_layouts=Replicate()),
    "model.layers.*.self_attn.[qkv]_proj": ColwiseParallel(),
    "model.layers.*.self_attn.o_proj": RowwiseParallel(),
    "model.layers.*.mlp.gate_proj": ColwiseParallel(),
    "model.layers.*.mlp.up_proj": ColwiseParallel(),
    "model.layers.*.mlp.down_proj": RowwiseParallel(),
    "lm_head": ColwiseParallel(output_layouts=Replicate()),
}


def divided(model: Any, mesh: DeviceMesh) -> Any:
    """Products among the ranks of one dimension of the mesh, parameters and batches among those of the other."""
    parallelize_module(model, mesh["products"], PLAN)
    for part in (*model.model.layers, model):
        fully_shard(part, mesh=mesh["batches"])
    return model


def trains_in_two_dimensions(_: int) -> list[float]:
    mesh = init_device_mesh(D, (2, 2), mesh_dim_names=("batches", "products"))
    model = divided(llama().to(D), mesh)
    assert model.lm_head.weight.to_local().shape == (VOCABULARY // RANKS, 32)
    return train(model, text().chunk(2, 1)[mesh["batches"].get_local_rank()].to(D))


@pytest.mark.wide
def test_fsdp_of_tensor_parallel(ranks: Ranks) -> None:
    results = ranks.run(trains_in_two_dimensions)
    losses = [(a + b) / 2 for a, b in zip(results[0], results[2], strict=True)]
    torch.testing.assert_close(losses, train(llama(), text()), rtol=TOLERANCE, atol=0)
    assert results[:1] + results[2:3] == results[1::2]


def trains_replicas(rank: int) -> list[float]:
    mesh = init_device_mesh(D, (2, 2), mesh_dim_names=("replicas", "parts"))
    model = llama().to(D)
    for part in (*model.model.layers, model):
        fully_shard(part, mesh=mesh)
    return train(model, text().chunk(RANKS, 1)[rank].to(D))


def test_fsdp_of_replicas(ranks: Ranks) -> None:
    losses = [sum(each) / RANKS for each in zip(*ranks.run(trains_replicas), strict=True)]
    torch.testing.assert_close(losses, train(llama(), text()), rtol=TOLERANCE, atol=0)


def by_the_plan_of_the_model(rank: int, folder: Path) -> tuple[list[list[int]], list[float], list[int]]:
    with mock.patch.dict(os.environ, LOCAL_RANK=str(rank), WORLD_SIZE=str(RANKS)):  # as torchrun tells it
        model: Any = transformers.AutoModelForCausalLM.from_pretrained(folder, tp_plan="auto")
    tokens = model.generate(text()[0, :, :4].to(D), max_new_tokens=8, do_sample=False).tolist()
    weight: Any = model.model.layers[0].mlp.up_proj.weight
    return tokens, train(model, text().to(D)), list(getattr(weight, "to_local", lambda: weight)().shape)


@pytest.mark.wide
def test_a_model_that_transformers_divides(ranks: Ranks, tmp_path: Path) -> None:
    pytest.importorskip("accelerate", reason="transformers needs it to divide a model")
    model = llama()
    model.save_pretrained(tmp_path)
    tokens = model.generate(text()[0, :, :4], max_new_tokens=8, do_sample=False).tolist()
    losses = train(model, text())
    for generated, trained, shape in ranks.run(by_the_plan_of_the_model, tmp_path):
        assert generated == tokens
        torch.testing.assert_close(trained, losses, rtol=TOLERANCE, atol=0)
        assert shape == [64 // RANKS, 32]
