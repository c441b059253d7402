"""Trains a small GPT, character by character, on source text of Python's standard library, on `mtia` or on the CPU.

Parameters, the order of the data and the sampled characters are drawn on the CPU, so both devices see the same numbers:

    python examples/train_text.py --device mtia --compile
    python examples/train_text.py --compare      # both, and fails if they differ
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import inspect
import math
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F
from training import Batch, Run, Score, Training, at_least_one, main, parser, train

# The text. Its figures differ a little between versions of Python.
MODULES = (
    "argparse",
    "ast",
    "configparser",
    "difflib",
    "doctest",
    "inspect",
    "logging",
    "optparse",
    "pickle",
    "pickletools",
    "smtplib",
    "socket",
    "subprocess",
    "tarfile",
    "typing",
    "zipfile",
)
HELD_OUT = 0.05  # of each module, its end

BATCH_SIZE = 16
WARMUP_STEPS = 20
LEARNING_RATE = 2e-3
MAX_GRADIENT_NORM = 1.0
BITS = Score("held-out bits per character", ".3f", max_difference=0.02)

PROMPT = "    def "
SAMPLED_CHARACTERS = 300
TEMPERATURE = 0.8


# The text -------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Text:
    """Characters as indices into `alphabet`."""

    alphabet: str
    train: torch.Tensor
    held_out: torch.Tensor

    def batches(self, steps: int, context: int, seed: int) -> Iterator[Batch]:
        """Random excerpts; the targets are the characters one place further on."""
        generator = torch.Generator().manual_seed(seed)
        excerpts = self.train.unfold(0, context + 1, 1)
        for _ in range(steps):
            batch = excerpts[torch.randint(len(excerpts), (BATCH_SIZE,), generator=generator)]
            yield batch[:, :-1], batch[:, 1:]

    def encode(self, characters: str) -> torch.Tensor:
        return torch.tensor([self.alphabet.index(character) for character in characters])

    def decode(self, indices: torch.Tensor) -> str:
        return "".join(self.alphabet[index] for index in indices.tolist())


def text() -> Text:
    sources = [inspect.getsource(importlib.import_module(name)) for name in MODULES]
    alphabet = "".join(sorted(set("".join(sources))))
    index = {character: i for i, character in enumerate(alphabet)}
    train, held_out = [], []
    for source in sources:
        characters = torch.tensor([index[character] for character in source])
        split = round(len(characters) * (1 - HELD_OUT))
        train.append(characters[:split])
        held_out.append(characters[split:])
    return Text(alphabet, torch.cat(train), torch.cat(held_out))


# The network ----------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Shape:
    """Of the network."""

    alphabet: int
    context: int = 128  # characters that it can look back on
    layers: int = 4
    width: int = 128
    heads: int = 4
    dropout: float = 0.0


class Attention(nn.Module):
    """Each character looks at itself and at those before it."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.dropout = shape.dropout
        self.query_key_value = nn.Linear(shape.width, 3 * shape.width)
        self.output = nn.Linear(shape.width, shape.width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        # (batch, characters, 3 * width) -> three times (batch, heads, characters, width of a head)
        split = self.query_key_value(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        query, key, value = split.unbind(0)
        dropout = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=True)
        projected: torch.Tensor = self.output(y.transpose(1, 2).flatten(-2))
        return projected


class Block(nn.Module):
    """Attention, then a perceptron, each beside a way around it and behind a normalization."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.attention = nn.Sequential(nn.LayerNorm(shape.width), Attention(shape), nn.Dropout(shape.dropout))
        self.perceptron = nn.Sequential(
            nn.LayerNorm(shape.width),
            nn.Linear(shape.width, 4 * shape.width),
            nn.GELU(),
            nn.Linear(4 * shape.width, shape.width),
            nn.Dropout(shape.dropout),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(x)
        y: torch.Tensor = x + self.perceptron(x)
        return y


class GPT(nn.Module):
    """Characters (batch, n <= context) to logits of the next one (batch, n, alphabet)."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.characters = nn.Embedding(shape.alphabet, shape.width)
        self.positions = nn.Parameter(torch.zeros(shape.context, shape.width))
        self.dropout = nn.Dropout(shape.dropout)
        self.blocks = nn.Sequential(*(Block(shape) for _ in range(shape.layers)))
        self.norm = nn.LayerNorm(shape.width)
        self.head = nn.Linear(shape.width, shape.alphabet, bias=False)
        self.head.weight = self.characters.weight
        self.apply(self._initialize)

    def _initialize(self, module: nn.Module) -> None:
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

    def forward(self, indices: torch.Tensor) -> torch.Tensor:
        x = self.dropout(self.characters(indices) + self.positions[: indices.size(1)])
        logits: torch.Tensor = self.head(self.norm(self.blocks(x)))
        return logits


def cross_entropy(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The mean over all characters, in nats."""
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


# Training and what comes of it ----------------------------------------------------------------------------------------


def training(device: str, shape: Shape, steps: int, seed: int) -> Training:
    torch.manual_seed(seed)
    model = GPT(shape).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.95))

    def share_of_learning_rate(step: int) -> float:
        """Rises linearly at first, then falls along a cosine to a tenth."""
        return min((step + 1) / WARMUP_STEPS, 0.55 + 0.45 * math.cos(math.pi * step / steps))

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, share_of_learning_rate)
    return Training(model, optimizer, cross_entropy, schedule, MAX_GRADIENT_NORM)


@torch.no_grad()
def bits_per_character(model: GPT, held_out: torch.Tensor, device: str) -> float:
    """Over the held-out text, cut into pieces as long as the context."""
    model.eval()
    context = model.shape.context
    pieces = held_out[: (len(held_out) - 1) // context * context + 1]
    inputs, targets = pieces[:-1].view(-1, context), pieces[1:].view(-1, context)
    nats = 0.0
    for some_inputs, some_targets in zip(inputs.split(BATCH_SIZE), targets.split(BATCH_SIZE), strict=True):
        loss = cross_entropy(model(some_inputs.to(device)), some_targets.to(device))
        nats += loss.item() * some_targets.numel()
    return nats / targets.numel() / math.log(2)


@torch.no_grad()
def sample(model: GPT, source: Text, device: str, seed: int) -> str:
    """Text that the model writes. The characters are drawn on the CPU, so that devices can be compared."""
    model.eval()
    generator = torch.Generator().manual_seed(seed)
    indices = source.encode(PROMPT)
    for _ in range(SAMPLED_CHARACTERS):
        # Not model(...): compiled, it would be compiled anew for texts that grow.
        logits = model.forward(indices[None, -model.shape.context :].to(device))[0, -1].cpu()
        probabilities = torch.softmax(logits / TEMPERATURE, dim=0)
        indices = torch.cat([indices, torch.multinomial(probabilities, 1, generator=generator)])
    return source.decode(indices)


def run(device: str, options: argparse.Namespace) -> Run:
    source = text()
    shape = Shape(alphabet=len(source.alphabet), dropout=options.dropout)
    network = training(device, shape, options.steps, options.seed)
    model = network.model
    assert isinstance(model, GPT)
    record = train(
        device,
        network,
        source.batches(options.steps, shape.context, options.seed),
        steps=options.steps,
        evaluate=lambda: bits_per_character(model, source.held_out, device),
        options=options,
    )
    print(f"what the network writes on {device}:")
    print("\n".join(f"  | {line}".rstrip() for line in sample(model, source, device, options.seed).splitlines()))
    return record


def arguments() -> argparse.Namespace:
    options = parser(__doc__, output=Path("text_loss.png"))
    options.add_argument("--steps", type=at_least_one, default=300)
    options.add_argument("--dropout", type=float, default=0.0, metavar="P")
    parsed = options.parse_args()
    if not 0 <= parsed.dropout < 1:
        options.error("--dropout must be in [0, 1)")
    if parsed.compare and parsed.dropout:
        options.error("--compare needs --dropout 0: each device draws random numbers of its own")
    return parsed


if __name__ == "__main__":
    options = arguments()
    sys.exit(main(options, "Training on source text of Python", BITS, lambda device: run(device, options)))
