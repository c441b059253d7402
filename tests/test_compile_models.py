"""Whole models, with random weights: compiled on mtia, forward and backward, they compute what eager PyTorch computes
on the CPU."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import nn

BATCH, TOKENS, VOCABULARY = 2, 16, 100


class Block(nn.Module):
    """Two convolutions and a shortcut, as in ResNet-18."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.first_norm = nn.BatchNorm2d(outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.second_norm = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = F.relu(self.first_norm(self.first(x)))
        return F.relu(self.second_norm(self.second(hidden)) + self.shortcut(x))


def resnet() -> nn.Module:
    widths = (8, 8, 16, 32)
    blocks = [Block(a, b, 1 + (a != b)) for a, b in itertools.pairwise(widths)]
    return nn.Sequential(
        nn.Conv2d(3, widths[0], 3, 1, 1), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)
    )


class Mixer(nn.Module):
    """One layer of MLP-Mixer: a perceptron across patches, and one across channels."""

    def __init__(self, patches: int, channels: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(channels) for _ in range(2))
        self.across_patches = nn.Sequential(nn.Linear(patches, 32), nn.GELU(), nn.Linear(32, patches))
        self.across_channels = nn.Sequential(nn.Linear(channels, 64), nn.GELU(), nn.Linear(64, channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.across_patches(self.norms[0](x).transpose(1, 2)).transpose(1, 2)
        result: torch.Tensor = x + self.across_channels(self.norms[1](x))
        return result


def mixer() -> nn.Module:
    embed = nn.Sequential(nn.Conv2d(3, 24, 4, 4), nn.Flatten(2))
    return nn.Sequential(embed, Transposed(), Mixer(16, 24), nn.Flatten(), nn.Linear(16 * 24, 10))


class Transposed(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.transpose(1, 2)


def bert() -> nn.Module:
    config = transformers.BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return transformers.BertForMaskedLM(config)


def gpt2() -> nn.Module:
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY, n_embd=32, n_layer=1, n_head=2, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0
    )
    return transformers.GPT2LMHeadModel(config)


def llama() -> nn.Module:
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    return transformers.LlamaForCausalLM(config)


def text_loss(model: Any, device: str) -> torch.Tensor:
    tokens = torch.arange(BATCH * TOKENS).view(BATCH, TOKENS) % VOCABULARY
    return model(input_ids=tokens.to(device), labels=tokens.flip(1).to(device)).loss  # type: ignore[no-any-return]


def image_loss(model: Any, device: str) -> torch.Tensor:
    images = torch.linspace(-1, 1, BATCH * 3 * 16 * 16).view(BATCH, 3, 16, 16).sin()
    return F.cross_entropy(model(images.to(device)), torch.arange(BATCH, device=device))


@pytest.mark.parametrize(
    ("make", "loss"),
    [(bert, text_loss), (gpt2, text_loss), (llama, text_loss), (resnet, image_loss), (mixer, image_loss)],
    ids=lambda value: value.__name__,
)
def test_a_model_trains_as_on_the_cpu(make: Callable[[], nn.Module], loss: Callable[[Any, str], torch.Tensor]) -> None:
    torch._dynamo.reset()
    model = make()
    compiled_model = make().to("mtia")
    compiled_model.load_state_dict(model.state_dict())
    expected = loss(model, "cpu")
    result = loss(torch.compile(compiled_model), "mtia")
    torch.testing.assert_close(result.cpu(), expected)
    expected.backward()
    result.backward()
    for (name, weight), expected_weight in zip(compiled_model.named_parameters(), model.parameters(), strict=True):
        gradient = None if weight.grad is None else weight.grad.cpu()
        torch.testing.assert_close(gradient, expected_weight.grad, rtol=1e-3, atol=1e-4, msg=name)
