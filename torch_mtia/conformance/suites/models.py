"""Small models of every kind: trained for five steps, stored and restored, as on the CPU."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from torch_mtia.conformance.agreement import assert_agrees, numbers
from torch_mtia.conformance.database import CPU, assert_same

pytestmark = pytest.mark.filterwarnings("ignore")

Tensor = torch.Tensor
TOLERANCE = {"rtol": 2e-3, "atol": 2e-4}
WORDS, WIDTH, LENGTH = 23, 16, 7


class Residual(nn.Module):
    """A block of ResNet."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.short = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.short(x))


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv2d(3, 8, 3, padding=1)
        self.middle = nn.Sequential(nn.Conv2d(8, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.SiLU())
        self.up = nn.ConvTranspose2d(16, 8, 2, 2)
        self.last = nn.Conv2d(16, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        skip = F.silu(self.down(x))
        result: Tensor = self.last(torch.cat([skip, self.up(self.middle(F.max_pool2d(skip, 2)))], 1))
        return result


class Encoder(nn.Module):
    """A transformer that sees the whole text, and a classifier on top of it."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 32, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.last = nn.Linear(WIDTH, 5)

    def forward(self, text: Tensor) -> Tensor:
        x = self.words(text) + self.places(torch.arange(text.shape[1], device=text.device))
        result: Tensor = self.last(self.layers(x, src_key_padding_mask=text == 0).mean(1))
        return result


class Decoder(nn.Module):
    """A language model: attention to what came before, weights of the words tied to the last layer's."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.first, self.second = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.attention, self.project = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.gate, self.up, self.down = nn.Linear(WIDTH, 32), nn.Linear(WIDTH, 32), nn.Linear(32, WIDTH)

    def forward(self, text: Tensor) -> Tensor:
        x = self.words(text)
        query, key, value = self.attention(self.first(x)).unflatten(-1, (3, 4, WIDTH // 4)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.project(mixed.transpose(1, 2).flatten(2))
        y = self.second(x)
        x = x + self.down(F.silu(self.gate(y)) * self.up(y))
        return F.linear(x, self.words.weight)


class Translator(nn.Module):
    """Encoder and decoder."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.body = nn.Transformer(WIDTH, 2, 1, 1, 32, dropout=0.0, batch_first=True)
        self.last = nn.Linear(WIDTH, WORDS)

    def forward(self, text: Tensor) -> Tensor:
        x = self.words(text)
        mask = nn.Transformer.generate_square_subsequent_mask(text.shape[1], device=text.device)
        result: Tensor = self.last(self.body(x, x.flip(1), tgt_mask=mask, tgt_is_causal=True))
        return result


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.body = kind(WIDTH, 12, 2, batch_first=True, bidirectional=kind is nn.GRU)  # type: ignore[arg-type]
        self.last = nn.Linear(24 if kind is nn.GRU else 12, WORDS)

    def forward(self, text: Tensor) -> Tensor:
        result: Tensor = self.last(self.body(self.words(text))[0])
        return result


class Recommender(nn.Module):
    """Bags of what a user has seen, and numbers; their products say what the user will like."""

    def __init__(self) -> None:
        super().__init__()
        self.bags = nn.EmbeddingBag(WORDS, WIDTH, mode="mean")
        self.dense = nn.Sequential(nn.Linear(LENGTH, WIDTH), nn.ReLU())
        self.last = nn.Linear(3, 5)

    def forward(self, seen: Tensor) -> Tensor:
        x = torch.stack([self.bags(seen), self.bags(seen[:, :3]), self.dense(seen.float() / WORDS)], 1)
        rows, columns = torch.triu_indices(3, 3, 1, device=seen.device)
        result: Tensor = self.last((x @ x.mT)[:, rows, columns])
        return result


class Diffusion(nn.Module):
    """Finds the noise in points, given the time."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3 + 8, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 3))

    def forward(self, x: Tensor) -> Tensor:
        time = torch.linspace(0.1, 1, len(x), device=x.device)[:, None]
        waves = time * 2.0 ** torch.arange(4, device=x.device)
        result: Tensor = self.body(torch.cat([x * (1 - time).sqrt(), waves.sin(), waves.cos()], 1))
        return result


class Autoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.utils.parametrizations.weight_norm(nn.Conv1d(2, 4, 4, 2, 1))
        self.decode = nn.ConvTranspose1d(4, 2, 4, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.decode(F.leaky_relu(self.encode(x)))
        return result


def cnn() -> nn.Module:
    body = [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3, groups=2), nn.ELU()]
    return nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))


def resnet() -> nn.Module:
    return nn.Sequential(Residual(3, 8, 2), Residual(8, 8, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))


def patches() -> nn.Module:
    """A vision transformer."""
    layer = nn.TransformerEncoderLayer(WIDTH, 2, 32, dropout=0.0, activation="gelu", batch_first=True)
    head = nn.Sequential(nn.Flatten(), nn.Linear(9 * WIDTH, 5))
    return nn.Sequential(nn.Conv2d(3, WIDTH, 4, 4), nn.Flatten(2), Transposed(), nn.TransformerEncoder(layer, 1), head)


class Transposed(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mT


def images(device: torch.device, seed: int) -> Tensor:
    return numbers(4, 3, 12, 12, device=device, seed=seed)


def text(device: torch.device, seed: int) -> Tensor:
    return torch.randint(1, WORDS, (6, LENGTH), generator=torch.Generator().manual_seed(seed)).to(device)


def classes(result: Tensor, _x: Tensor) -> Tensor:
    return F.cross_entropy(result, torch.arange(len(result), device=result.device) % 5, label_smoothing=0.1)


def next_word(result: Tensor, x: Tensor) -> Tensor:
    return F.cross_entropy(result[:, :-1].flatten(0, 1), x[:, 1:].flatten())


def the_same(result: Tensor, x: Tensor) -> Tensor:
    return F.smooth_l1_loss(result, x)


Loss = Callable[[Tensor, Tensor], Tensor]
MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[torch.device, int], Tensor], Loss]] = {
    "cnn": (cnn, images, classes),
    "resnet": (resnet, images, classes),
    "vision transformer": (patches, images, classes),
    "unet": (UNet, images, the_same),
    "transformer encoder": (Encoder, text, classes),
    "transformer decoder": (Decoder, text, next_word),
    "transformer of both": (Translator, text, next_word),
    "lstm": (lambda: Recurrent(nn.LSTM), text, next_word),
    "gru": (lambda: Recurrent(nn.GRU), text, next_word),
    "recommender": (Recommender, text, classes),
    "diffusion": (Diffusion, lambda d, seed: numbers(9, 3, device=d, seed=seed), the_same),
    "autoencoder": (Autoencoder, lambda d, seed: numbers(3, 2, 16, device=d, seed=seed), the_same),
}
by_model = pytest.mark.parametrize("name", MODELS)


class Training:
    """A model on a device, with its optimizer; it counts its steps, and each sees other data."""

    def __init__(self, name: str, device: torch.device, optimizer: str = "AdamW") -> None:
        make, self.inputs, self.loss = MODELS[name]
        torch.manual_seed(0)
        self.model, self.device, self.steps = make().to(device), device, 0
        # With a large epsilon, since Adam makes steps of what is rounding in a gradient of nearly 0.
        kwargs = {"AdamW": {"lr": 1e-2, "eps": 1e-2}, "SGD": {"lr": 0.1, "momentum": 0.9, "nesterov": True}}[optimizer]
        self.optimizer = getattr(torch.optim, optimizer)(self.model.parameters(), **kwargs)

    def forward(self) -> Tensor:
        x = self.inputs(self.device, self.steps)
        return self.loss(self.model(x), x)

    def step(self) -> float:
        self.optimizer.zero_grad()
        loss = self.forward()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.steps += 1
        return loss.item()

    def state(self) -> dict[str, Tensor]:
        return {name: tensor.detach().clone() for name, tensor in self.model.state_dict().items()}


@by_model
@pytest.mark.parametrize("optimizer", ["SGD", "AdamW"])
def test_five_steps(device: torch.device, optimizer: str, name: str) -> None:
    def call(d: torch.device) -> Any:
        training = Training(name, d, optimizer)
        return [training.step() for _ in range(5)], training.state()

    assert_agrees(call, device, TOLERANCE)


@by_model
def test_stored_and_restored(device: torch.device, name: str) -> None:
    """Training that goes on from a file takes the steps that it would have taken: on the device, and on the CPU."""
    training = Training(name, device)
    for _ in range(2):
        training.step()
    file = io.BytesIO()
    torch.save({"model": training.model.state_dict(), "optimizer": training.optimizer.state_dict()}, file)
    expected = [training.step() for _ in range(2)]
    for place in (device, CPU):
        file.seek(0)
        state = torch.load(file, map_location=place)
        other = Training(name, place)
        other.model.load_state_dict(state["model"])
        other.optimizer.load_state_dict(state["optimizer"])
        other.steps = 2
        assert [other.step() for _ in range(2)] == pytest.approx(expected, rel=2e-3)
        here = {key: tensor.cpu() for key, tensor in other.state().items()}
        assert_same(here, {key: tensor.cpu() for key, tensor in training.state().items()}, CPU, TOLERANCE)


@by_model
def test_evaluation(device: torch.device, name: str) -> None:
    def call(d: torch.device) -> Tensor:
        training = Training(name, d)
        training.model.eval()
        with torch.inference_mode():
            return training.model(training.inputs(d, 3)).clone()  # type: ignore[no-any-return]

    assert_agrees(call, device, TOLERANCE)


# Not every processor has oneDNN's LSTM of 16 bits, and autocast gives it one all the same.
@pytest.mark.without_onednn
@by_model
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["float16", "bfloat16"])
def test_autocast(device: torch.device, dtype: torch.dtype, name: str) -> None:
    """What it learns is near to what it learns in float32."""
    exact, cast = Training(name, device), Training(name, device)
    forward = cast.forward

    def under_autocast() -> Tensor:
        with torch.autocast(device.type, dtype):
            return forward()

    cast.forward = under_autocast  # type: ignore[method-assign]
    losses = [cast.step() for _ in range(4)]
    assert losses == pytest.approx([exact.step() for _ in range(4)], rel=0.1)
    assert all(parameter.dtype == torch.float32 for parameter in cast.model.parameters())


@by_model
def test_checkpointing(device: torch.device, name: str) -> None:
    """Gradients do not change where backward computes forward again."""
    training = Training(name, device)
    copied = copy.deepcopy(training.model)
    x = training.inputs(device, 0)
    training.loss(training.model(x), x).backward()
    training.loss(checkpoint(copied, x, use_reentrant=False), x).backward()
    pairs = zip(training.model.parameters(), copied.parameters(), strict=True)
    for one, other in pairs:
        assert one.grad is not None
        assert other.grad is not None
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-5)
