"""Random numbers: their distributions against the exact ones. Every test seeds: what passes once passes always."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from torch_mtia.conformance.database import dtype_name
from torch_mtia.conformance.statistics import Distribution, assert_counts, assert_independent, distance, normal_cdf

pytestmark = pytest.mark.filterwarnings("ignore")

N = 50_000
FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
by_float = pytest.mark.parametrize("dtype", FLOATS, ids=dtype_name)
by_integer = pytest.mark.parametrize("dtype", INTEGERS, ids=dtype_name)

Draw = Callable[[torch.Tensor], torch.Tensor]

CONTINUOUS: dict[str, tuple[Draw, Distribution]] = {
    "rand": (torch.rand_like, lambda x: x.clamp(0, 1)),
    "randn": (torch.randn_like, normal_cdf),
    "uniform": (lambda x: x.uniform_(-2, 5), lambda x: ((x + 2) / 7).clamp(0, 1)),
    "normal": (lambda x: x.normal_(3, 0.5), lambda x: normal_cdf((x - 3) / 0.5)),
    "exponential": (lambda x: x.exponential_(1.5), lambda x: -torch.expm1(-1.5 * x)),
    "cauchy": (lambda x: x.cauchy_(1, 2), lambda x: 0.5 + torch.atan((x - 1) / 2) / math.pi),
    "log_normal": (lambda x: x.log_normal_(0.3, 0.6), lambda x: normal_cdf((x.log() - 0.3) / 0.6)),
}

# What is drawn, and the probabilities of 0, 1, 2, ...; the last is of all that is greater.
DISCRETE: dict[str, tuple[Draw, list[float]]] = {
    "bernoulli": (lambda x: x.bernoulli_(0.3), [0.7, 0.3]),
    "bernoulli of a tensor": (lambda x: torch.bernoulli(torch.full_like(x, 0.625)), [0.375, 0.625]),
    "geometric": (lambda x: x.geometric_(0.4), [0.0, *(0.4 * 0.6**k for k in range(8)), 0.6**8]),
    "poisson": (
        lambda x: torch.poisson(torch.full_like(x, 2.5)),
        [*(weights := [math.exp(-2.5) * 2.5**k / math.factorial(k) for k in range(8)]), 1 - sum(weights)],
    ),
    "binomial": (
        lambda x: torch.binomial(torch.full_like(x, 5), torch.full_like(x, 0.25)),
        [math.comb(5, k) * 0.25**k * 0.75 ** (5 - k) for k in range(6)],
    ),
    "random": (lambda x: x.random_(0, 6), [1 / 6] * 6),
    "randint": (lambda x: torch.randint_like(x, 1, 5), [0.0, *[0.25] * 4]),
}


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(2026)


# Distributions -------------------------------------------------------------------------------------------------------


@by_float
@pytest.mark.parametrize("name", CONTINUOUS)
def test_continuous(device: torch.device, name: str, dtype: torch.dtype) -> None:
    draw, cdf = CONTINUOUS[name]
    sample = draw(torch.empty(N, dtype=dtype, device=device))
    assert (sample.dtype, sample.device) == (dtype, device)
    assert not sample.isnan().any()
    # Numbers of 16 bits are rounded: each stands for a part of the distribution.
    assert distance(sample, cdf) < 2.2 / math.sqrt(N) + 2 * torch.finfo(dtype).eps


@by_float
@pytest.mark.parametrize("name", DISCRETE)
def test_discrete(device: torch.device, name: str, dtype: torch.dtype) -> None:
    draw, probabilities = DISCRETE[name]
    if name == "binomial" and dtype not in (torch.float64, torch.float32):
        return  # the CPU has no other
    sample = draw(torch.empty(N, dtype=dtype, device=device))
    assert (sample.dtype, sample.device) == (dtype, device)
    values = sample.cpu().double()
    assert torch.equal(values, values.round())
    counts = torch.bincount(values.long().clamp(max=len(probabilities) - 1), minlength=len(probabilities))
    assert_counts(counts, torch.tensor(probabilities))


@by_float
def test_moments(device: torch.device, dtype: torch.dtype) -> None:
    rounding = 2 * torch.finfo(dtype).eps
    for draw, mean, deviation in (
        (torch.rand_like, 0.5, math.sqrt(1 / 12)),
        (torch.randn_like, 0.0, 1.0),
        (lambda x: x.exponential_(2), 0.5, 0.5),
        (lambda x: x.normal_(-4, 3), -4.0, 3.0),
    ):
        sample = draw(torch.empty(N, dtype=dtype, device=device)).cpu().double()
        assert abs(float(sample.mean()) - mean) < 4 * deviation / math.sqrt(N) + rounding
        assert abs(float(sample.std()) - deviation) < 8 * deviation / math.sqrt(N) + rounding


@by_float
def test_bounds(device: torch.device, dtype: torch.dtype) -> None:
    x = torch.rand(N, dtype=dtype, device=device)
    assert x.min().item() >= 0
    assert x.max().item() < 1
    assert torch.empty(N, dtype=dtype, device=device).exponential_().min().item() >= 0
    x.uniform_(3, 3)
    assert x.unique().tolist() == [3.0]


def test_normal_of_tensors(device: torch.device) -> None:
    mean, deviation = torch.arange(4.0, device=device), torch.tensor([1.0, 0.5, 2.0, 0.0], device=device)
    sample = torch.normal(mean.expand(N, 4), deviation.expand(N, 4)).cpu().double()
    assert (sample.mean(0) - mean.cpu()).abs().max().item() < 8 / math.sqrt(N)
    assert (sample.std(0) - deviation.cpu()).abs().max().item() < 16 / math.sqrt(N)
    assert sample[:, 3].unique().tolist() == [3.0]


def test_complex_numbers_are_normal(device: torch.device) -> None:
    sample = torch.randn(N, dtype=torch.complex64, device=device)
    for part in (sample.real, sample.imag):
        assert distance(part * math.sqrt(2), normal_cdf) < 2.2 / math.sqrt(N)
    assert_independent(sample.real, sample.imag)


@by_integer
def test_integers(device: torch.device, dtype: torch.dtype) -> None:
    low, high = (0, 11) if dtype == torch.uint8 else (-5, 6)
    sample = torch.randint(low, high, (N,), dtype=dtype, device=device).cpu().long()
    assert_counts(torch.bincount(sample - low, minlength=11), torch.full((11,), 1 / 11))
    # Without bounds: from 0 to the greatest number, each bit as often 0 as 1.
    sample = torch.empty(N, dtype=dtype, device=device).random_().cpu().long()
    assert sample.min() >= 0
    for bit in range(torch.iinfo(dtype).bits - (dtype != torch.uint8)):
        ones = int((sample >> bit & 1).sum())
        assert_counts(torch.tensor([N - ones, ones]), torch.tensor([0.5, 0.5]))


def test_large_bounds(device: torch.device) -> None:
    low, high = -(2**62), 2**62
    sample = torch.randint(low, high, (N,), device=device).cpu()
    assert low <= int(sample.min()) < int(sample.max()) < high
    assert distance(sample.double(), lambda x: (x - low) / (high - low)) < 2.2 / math.sqrt(N)
    assert len(sample.unique()) == N


def test_permutations(device: torch.device) -> None:
    for size in (0, 1, 7, 1000, 70_000):
        order = torch.randperm(size, device=device)
        assert order.device == device
        assert torch.equal(order.sort().values.cpu(), torch.arange(size))
    order = torch.randperm(N, device=device).cpu().double()
    assert_independent(order, torch.arange(N).double())
    powers = torch.tensor([64, 16, 4, 1])
    codes = torch.stack([torch.randperm(4, device=device) for _ in range(1200)]).cpu() @ powers
    found, counts = codes.unique(return_counts=True)
    assert len(found) == 24
    assert_counts(counts, torch.full((24,), 1 / 24))


@by_float
def test_multinomial_with_replacement(device: torch.device, dtype: torch.dtype) -> None:
    weights = torch.tensor([[1.0, 2, 3, 0, 4], [5.0, 0, 0, 5, 0]])
    drawn = torch.multinomial(weights.to(device, dtype), N, replacement=True).cpu()
    for row, weight in zip(drawn, weights, strict=True):
        assert_counts(torch.bincount(row, minlength=5), weight / 10)


@by_float
def test_multinomial_without_replacement(device: torch.device, dtype: torch.dtype) -> None:
    weights = torch.tensor([1.0, 2, 3, 0, 4])
    drawn = torch.multinomial(weights.to(device, dtype).expand(N // 5, 5), 4).cpu()
    assert torch.equal(drawn.sort(1).values, torch.tensor([0, 1, 2, 4]).expand_as(drawn))
    assert_counts(torch.bincount(drawn[:, 0], minlength=5), weights / 10)
    # The second, given that the first was the last: of the weights that remain.
    second = drawn[drawn[:, 0] == 4][:, 1]
    assert_counts(torch.bincount(second, minlength=5), torch.tensor([1.0, 2, 3, 0, 0]) / 6)


# Functions that draw -------------------------------------------------------------------------------------------------


@by_float
@pytest.mark.parametrize("rate", [0.0, 0.1, 0.5, 0.9, 1.0])
def test_dropout(device: torch.device, rate: float, dtype: torch.dtype) -> None:
    x = torch.ones(N, dtype=dtype, device=device, requires_grad=True)
    y = torch.nn.functional.dropout(x, rate)
    kept = y.detach() != 0
    assert abs(kept.double().mean().item() - (1 - rate)) <= 4 * math.sqrt(rate * (1 - rate) / N)
    if kept.any():
        assert y.detach()[kept].unique().tolist() == pytest.approx([1 / (1 - rate)], rel=2e-2)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(gradient, y.detach())
    assert torch.equal(torch.nn.functional.dropout(x, rate, training=False), x)


def test_dropout_of_channels(device: torch.device) -> None:
    y = torch.nn.functional.dropout2d(torch.ones(200, 50, 3, 3, device=device), 0.25)
    whole = y.flatten(2).cpu()
    assert torch.equal(whole, whole[:, :, :1].expand_as(whole))
    kept = int((whole[..., 0] != 0).sum())
    assert_counts(torch.tensor([10_000 - kept, kept]), torch.tensor([0.25, 0.75]))


def test_alpha_dropout_keeps_mean_and_variance(device: torch.device) -> None:
    y = torch.nn.functional.alpha_dropout(torch.randn(N, device=device), 0.2, training=True).cpu()
    assert abs(float(y.mean())) < 4 / math.sqrt(N)
    assert abs(float(y.std()) - 1) < 8 / math.sqrt(N)


def test_rrelu(device: torch.device) -> None:
    y = torch.nn.functional.rrelu(-torch.ones(N, device=device), 0.1, 0.3, training=True)
    assert distance(-y, lambda x: ((x - 0.1) / 0.2).clamp(0, 1)) < 2.2 / math.sqrt(N)


def test_gumbel_softmax(device: torch.device) -> None:
    weights = torch.tensor([0.1, 0.2, 0.3, 0.4])
    drawn = torch.nn.functional.gumbel_softmax(weights.log().to(device).expand(N // 5, 4), hard=True)
    assert_counts(drawn.sum(0), weights)


@pytest.mark.parametrize("name", ["Gamma", "Beta", "Dirichlet", "StudentT", "Laplace"])
def test_distributions_of_the_library(device: torch.device, name: str) -> None:
    distributions: Any = torch.distributions
    two, three = torch.tensor(2.0, device=device), torch.tensor(3.0, device=device)
    made: Any = {
        "Gamma": lambda: distributions.Gamma(two, three),
        "Beta": lambda: distributions.Beta(two, three),
        "Dirichlet": lambda: distributions.Dirichlet(torch.stack([two, three, two])),
        "StudentT": lambda: distributions.StudentT(three * 4),
        "Laplace": lambda: distributions.Laplace(two, three),
    }[name]()
    sample = made.sample((N,))
    assert sample.device == device
    bound = 4 * made.stddev.cpu() / math.sqrt(N)
    assert ((sample.cpu().double().mean(0) - made.mean.cpu()).abs() < bound).all()
    assert (sample.cpu().double().std(0) / made.stddev.cpu() - 1).abs().max().item() < 0.05
