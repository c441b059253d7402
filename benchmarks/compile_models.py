"""Five models with random weights, which compile.py and tests/test_compile_models.py train."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F


@dataclasses.dataclass(frozen=True)
class Shape:
    """Sizes, for all models."""

    batch: int = 8
    tokens: int = 128
    vocabulary: int = 1000
    width: int = 256
    heads: int = 4
    layers: int = 4
    image: int = 32  # pixels, in height and width


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


def resnet(shape: Shape) -> nn.Module:
    widths = (shape.width // 4, shape.width // 4, shape.width // 2, shape.width)
    blocks = [Block(a, b, 1 + (a != b)) for a, b in itertools.pairwise(widths)]
    return nn.Sequential(
        nn.Conv2d(3, widths[0], 3, 1, 1), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(shape.width, 10)
    )


class Mixer(nn.Module):
    """One layer of MLP-Mixer: a perceptron across patches, and one across channels."""

    def __init__(self, patches: int, channels: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(channels) for _ in range(2))
        self.across_patches = nn.Sequential(nn.Linear(patches, 2 * patches), nn.GELU(), nn.Linear(2 * patches, patches))
        self.across_channels = nn.Sequential(
            nn.Linear(channels, 4 * channels), nn.GELU(), nn.Linear(4 * channels, channels)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.across_patches(self.norms[0](x).transpose(1, 2)).transpose(1, 2)
        result: torch.Tensor = x + self.across_channels(self.norms[1](x))
        return result


class Transposed(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.transpose(1, 2)


def mixer(shape: Shape) -> nn.Module:
    patches = (shape.image // 4) ** 2
    layers = [Mixer(patches, shape.width) for _ in range(shape.layers)]
    embed = nn.Sequential(nn.Conv2d(3, shape.width, 4, 4), nn.Flatten(2), Transposed())
    return nn.Sequential(embed, *layers, nn.Flatten(), nn.Linear(patches * shape.width, 10))


def bert(shape: Shape) -> nn.Module:
    import transformers

    config = transformers.BertConfig(
        vocab_size=shape.vocabulary,
        hidden_size=shape.width,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        intermediate_size=4 * shape.width,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return transformers.BertForMaskedLM(config)


def gpt2(shape: Shape) -> nn.Module:
    import transformers

    config = transformers.GPT2Config(
        vocab_size=shape.vocabulary,
        n_embd=shape.width,
        n_layer=shape.layers,
        n_head=shape.heads,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )
    return transformers.GPT2LMHeadModel(config)


def llama(shape: Shape) -> nn.Module:
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=shape.vocabulary,
        hidden_size=shape.width,
        intermediate_size=2 * shape.width,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.heads // 2,
    )
    return transformers.LlamaForCausalLM(config)


def text_loss(model: Any, shape: Shape, device: str) -> torch.Tensor:
    tokens = torch.arange(shape.batch * shape.tokens).view(shape.batch, shape.tokens) % shape.vocabulary
    return model(input_ids=tokens.to(device), labels=tokens.flip(1).to(device)).loss  # type: ignore[no-any-return]


def image_loss(model: Any, shape: Shape, device: str) -> torch.Tensor:
    size = (shape.batch, 3, shape.image, shape.image)
    images = torch.linspace(-1, 1, torch.Size(size).numel()).view(size).sin()
    return F.cross_entropy(model(images.to(device)), torch.arange(shape.batch, device=device))


@dataclasses.dataclass(frozen=True)
class Model:
    make: Callable[[Shape], nn.Module]
    loss: Callable[[Any, Shape, str], torch.Tensor]
    """The loss for a fixed batch: takes the model, the shape that it was made with, and its device."""

    @property
    def name(self) -> str:
        return self.make.__name__


LLAMA = Model(llama, text_loss)
MODELS = (
    Model(bert, text_loss),
    Model(gpt2, text_loss),
    LLAMA,
    Model(resnet, image_loss),
    Model(mixer, image_loss),
)
