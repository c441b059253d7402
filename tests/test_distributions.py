"""What the device draws has the distribution that was asked for, and stays within its range."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from scipy import stats
from torch.nn import functional

import torch_mtia

Fill = Callable[..., torch.Tensor]
FLOATING = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGRAL = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
N = 100_000
ALPHA = 1e-4  # a right distribution fails a test with this probability; the seeds are fixed, so it never does


@pytest.fixture(autouse=True)
def _native_only() -> Iterator[None]:
    with torch_mtia.fallback.forbid():
        yield


def filled(fill: Fill, size: int | tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """What `fill` draws into a new tensor with seed 1."""
    torch.mtia.manual_seed(1)
    return fill(torch.empty(size, dtype=dtype, device="mtia")).cpu()


# Distributions -------------------------------------------------------------------------------------------------------


def gamma_of(alpha: float) -> Fill:
    return lambda t: torch._standard_gamma(t.fill_(alpha))


CONTINUOUS: dict[str, tuple[Fill, Any]] = {
    "uniform_": (lambda t: t.uniform_(-2, 3), stats.uniform(-2, 5)),
    "normal_": (lambda t: t.normal_(2, 3), stats.norm(2, 3)),
    "log_normal_": (lambda t: t.log_normal_(0.5, 0.25), stats.lognorm(0.25, scale=2.718281828459045**0.5)),
    "exponential_": (lambda t: t.exponential_(0.5), stats.expon(scale=2)),
    "cauchy_": (lambda t: t.cauchy_(1, 2), stats.cauchy(1, 2)),
    "normal of a mean": (lambda t: torch.normal(torch.full_like(t, 1.0), 2.0, out=t), stats.norm(1, 2)),
    "normal of a std": (lambda t: torch.normal(1.0, torch.full_like(t, 2.0), out=t), stats.norm(1, 2)),
    "normal of both": (lambda t: torch.normal(torch.full_like(t, 1.0), torch.full_like(t, 2.0)), stats.norm(1, 2)),
    "rrelu": (lambda t: functional.rrelu(t.fill_(-1.0), 0.1, 0.4, training=True), stats.uniform(-0.4, 0.3)),
    **{f"gamma {alpha}": (gamma_of(alpha), stats.gamma(alpha)) for alpha in (0.25, 1.0, 4.5)},
    "dirichlet": (
        lambda t: torch._sample_dirichlet(torch.tensor([0.5, 1.5], dtype=t.dtype).to("mtia").expand(N, 2))[:, 0],
        stats.beta(0.5, 1.5),
    ),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", CONTINUOUS)
def test_continuous_distributions(name: str, dtype: torch.dtype) -> None:
    fill, distribution = CONTINUOUS[name]
    drawn = filled(fill, N, dtype)
    assert stats.kstest(drawn.double().numpy(), distribution.cdf).pvalue > ALPHA


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["uniform_", "normal_", "exponential_", "cauchy_", "log_normal_"])
def test_continuous_distributions_in_low_precision(name: str, dtype: torch.dtype) -> None:
    """What is drawn is rounded, so the test looks at a few bins with edges that the dtype has."""
    fill, distribution = CONTINUOUS[name]
    drawn = filled(fill, N, dtype).double()
    edges = torch.tensor(distribution.ppf([0.1, 0.25, 0.5, 0.75, 0.9])).to(dtype).double()
    for edge in edges.tolist():
        step = abs(edge) * torch.finfo(dtype).eps
        share = float((drawn <= edge).double().mean())
        assert distribution.cdf(edge - step) - 0.01 < share < distribution.cdf(edge + step) + 0.01


def test_variates_are_independent_of_their_neighbours() -> None:
    """Box and Muller's pairs lie 16 apart."""
    for fill in (lambda t: t.uniform_(-2, 3), lambda t: t.normal_(2, 3)):
        drawn = filled(fill, N).double()
        for lag in (1, 2, 15, 16, 17, 32, 64):
            assert stats.pearsonr(drawn[:-lag].numpy(), drawn[lag:].numpy()).pvalue > ALPHA
            assert stats.pearsonr(drawn[:-lag].numpy() ** 2, drawn[lag:].numpy() ** 2).pvalue > ALPHA


def chi_square(drawn: torch.Tensor, probability: Callable[[Any], Any], values: range) -> float:
    """Of the counts of `values`, and of everything else together."""
    possible = [value for value in values if probability(value) > 0]
    counts = [int((drawn == value).sum()) for value in possible]
    expected = [float(probability(value)) * drawn.numel() for value in possible]
    counts.append(drawn.numel() - sum(counts))
    expected.append(drawn.numel() - sum(expected))
    if expected[-1] < 5:
        assert counts[-1] <= 20
        counts.pop()
        expected.pop()
        total = sum(expected)
        expected = [e * sum(counts) / total for e in expected]
    return float(stats.chisquare(counts, expected).pvalue)


def poisson_of(rate: float) -> Fill:
    return lambda t: torch.poisson(t.fill_(rate))


def binomial_of(count: int, p: float) -> Fill:
    return lambda t: torch.binomial(torch.full_like(t, float(count)), t.fill_(p))


def multinomial_of(replacement: bool) -> Fill:
    return lambda t: torch.multinomial(torch.tensor([1.0, 0.0, 2.0, 5.0]).to(t).expand(N, 4), 1, replacement)


WEIGHTS = (1 / 8, 0.0, 2 / 8, 5 / 8)

DISCRETE: dict[str, tuple[Fill, Callable[[Any], Any], range]] = {
    "geometric_": (lambda t: t.geometric_(0.3), stats.geom(0.3).pmf, range(1, 20)),
    "bernoulli_": (lambda t: t.bernoulli_(0.3), stats.bernoulli(0.3).pmf, range(2)),
    "bernoulli_ of a tensor": (
        lambda t: t.bernoulli_(torch.full(t.shape, 0.3, device=t.device)),
        stats.bernoulli(0.3).pmf,
        range(2),
    ),
    "random_ to": (lambda t: t.random_(100), stats.randint(0, 100).pmf, range(100)),
    "random_ from": (lambda t: t.random_(-20, 100), stats.randint(-20, 100).pmf, range(-20, 100)),
    "poisson 0.5": (poisson_of(0.5), stats.poisson(0.5).pmf, range(6)),
    "poisson 9.5": (poisson_of(9.5), stats.poisson(9.5).pmf, range(1, 22)),
    "poisson 10": (poisson_of(10.0), stats.poisson(10).pmf, range(2, 23)),
    "poisson 200": (poisson_of(200.0), stats.poisson(200).pmf, range(160, 240)),
    "binomial 10, 0.2": (binomial_of(10, 0.2), stats.binom(10, 0.2).pmf, range(7)),
    "binomial 100, 0.5": (binomial_of(100, 0.5), stats.binom(100, 0.5).pmf, range(35, 66)),
    "binomial 100, 0.97": (binomial_of(100, 0.97), stats.binom(100, 0.97).pmf, range(90, 101)),
    "multinomial": (multinomial_of(False), lambda k: WEIGHTS[k], range(4)),
    "multinomial with replacement": (multinomial_of(True), lambda k: WEIGHTS[k], range(4)),
    "mask of dropout": (lambda t: torch.native_dropout(t, 0.3, True)[1], stats.bernoulli(0.7).pmf, range(2)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", DISCRETE)
def test_discrete_distributions(name: str, dtype: torch.dtype) -> None:
    fill, probability, values = DISCRETE[name]
    assert chi_square(filled(fill, N, dtype), probability, values) > ALPHA


@pytest.mark.parametrize("dtype", INTEGRAL)
@pytest.mark.parametrize("name", ["geometric_", "bernoulli_", "bernoulli_ of a tensor", "random_ to"])
def test_discrete_distributions_of_integers(name: str, dtype: torch.dtype) -> None:
    fill, probability, values = DISCRETE[name]
    assert chi_square(filled(fill, N, dtype), probability, values) > ALPHA


@pytest.mark.parametrize("bits", [19, 20, 21, 40, 62])
def test_integers_of_every_range_are_uniform(bits: int) -> None:
    drawn = filled(lambda t: t.random_(-(2**bits) // 2, 2**bits // 2), N, torch.int64)
    assert int(drawn.min()) >= -(2**bits) // 2
    assert int(drawn.max()) < 2**bits // 2
    scaled = drawn.double() / 2**bits
    assert stats.kstest(scaled.numpy(), stats.uniform(-0.5, 1).cdf).pvalue > ALPHA
    assert chi_square(drawn & 15, stats.randint(0, 16).pmf, range(16)) > ALPHA


def test_multinomial_with_replacement() -> None:
    weights = torch.tensor([[1.0, 0.0, 2.0, 5.0], [4.0, 4.0, 0.0, 0.0]])
    torch.mtia.manual_seed(1)
    drawn = torch.multinomial(weights.to("mtia"), N, replacement=True).cpu()
    for row, weight in zip(drawn, weights, strict=True):
        categories = [k for k in range(4) if weight[k] > 0]
        assert set(row.tolist()) == set(categories)
        counts = [int((row == k).sum()) for k in categories]
        expected = [float(weight[k] / weight.sum()) * N for k in categories]
        assert stats.chisquare(counts, expected).pvalue > ALPHA


def test_multinomial_without_replacement() -> None:
    weights = torch.tensor([1.0, 0.0, 2.0, 5.0], dtype=torch.float64)
    torch.mtia.manual_seed(1)
    drawn = torch.multinomial(weights.expand(N, 4).to("mtia"), 2).cpu()
    pairs = {
        (i, j): float(weights[i] / 8 * weights[j] / (8 - weights[i])) for i in (0, 2, 3) for j in (0, 2, 3) if i != j
    }
    counts = [int(((drawn[:, 0] == i) & (drawn[:, 1] == j)).sum()) for i, j in pairs]
    assert stats.chisquare(counts, [p * N for p in pairs.values()]).pvalue > ALPHA
    everything = torch.multinomial(weights.to("mtia"), 4).tolist()
    assert sorted(everything) == [0, 1, 2, 3]
    assert everything[3] == 1


def test_permutations() -> None:
    torch.mtia.manual_seed(1)
    counts: dict[tuple[int, ...], int] = {}
    for _ in range(2400):
        drawn = tuple(torch.randperm(4, device="mtia").tolist())
        counts[drawn] = counts.get(drawn, 0) + 1
    assert len(counts) == 24
    assert stats.chisquare(list(counts.values())).pvalue > ALPHA
    large = torch.randperm(100_001, device="mtia").cpu()
    assert torch.equal(large.sort().values, torch.arange(100_001))
    assert abs(stats.spearmanr(large.numpy(), range(100_001)).statistic) < 0.02


# Ranges --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATING)
@pytest.mark.parametrize(("low", "high"), [(0, 1), (-1, 1), (0.1, 0.3), (1, 1.0625), (100, 200), (-3, -0.7), (-2, 0)])
def test_a_uniform_number_is_below_the_upper_bound(dtype: torch.dtype, low: float, high: float) -> None:
    drawn = filled(lambda t: t.uniform_(low, high), N, dtype)
    assert drawn.min() >= torch.tensor(low, dtype=dtype)
    assert float(drawn.max()) < high
    assert float(drawn.max()) > low


@pytest.mark.parametrize("dtype", FLOATING)
def test_an_empty_uniform_range_gives_its_bound(dtype: torch.dtype) -> None:
    assert filled(lambda t: t.uniform_(0.5, 0.5), 10, dtype).tolist() == [0.5] * 10


@pytest.mark.parametrize("dtype", FLOATING)
def test_what_is_positive_is_never_zero(dtype: torch.dtype) -> None:
    assert filled(lambda t: t.exponential_(), 2**21, dtype).min() > 0
    assert filled(lambda t: t.exponential_(float("inf")), 10, dtype).tolist() == [0.0] * 10
    assert filled(lambda t: t.log_normal_(), N, dtype).min() > 0


def test_a_normal_number_of_many_is_finite_and_large() -> None:
    drawn = filled(lambda t: t.normal_(), 2**22)
    assert drawn.isfinite().all()
    assert 4.5 < drawn.abs().max() < 7
    assert filled(lambda t: t.cauchy_(), 2**22).isfinite().all()


@pytest.mark.parametrize("dtype", [*INTEGRAL, *FLOATING, torch.bool])
def test_random_reaches_from_zero_to_the_largest_exact_integer(dtype: torch.dtype) -> None:
    drawn = filled(lambda t: t.random_(), N, dtype)
    if dtype.is_floating_point:
        largest = 2 / torch.finfo(dtype).eps
    else:
        largest = 1 if dtype is torch.bool else torch.iinfo(dtype).max
    assert 0 <= drawn.double().min() <= largest / 1000
    assert largest * 0.99 <= drawn.double().max() <= largest


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32, torch.float64, torch.bfloat16])
def test_random_of_all_64_bits(dtype: torch.dtype) -> None:
    drawn = filled(lambda t: t.random_(-(2**63), None), N, dtype).double()
    assert drawn.min() < -0.99 * 2**63
    assert drawn.max() > 0.99 * 2**63
    assert stats.kstest(drawn.numpy() / 2**63, stats.uniform(-1, 2).cdf).pvalue > ALPHA or dtype is torch.bfloat16


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64])
def test_random_of_unsigned_integers(dtype: torch.dtype) -> None:
    drawn = filled(lambda t: t.random_(10, 1000), N, dtype)
    assert set(drawn.tolist()) == set(range(10, 1000))


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8])
def test_geometric_numbers_that_do_not_fit_become_the_largest(dtype: torch.dtype) -> None:
    drawn = filled(lambda t: t.geometric_(1e-6), 1000, dtype)
    assert int(drawn.min()) >= 1
    assert int(drawn.max()) == torch.iinfo(dtype).max


@pytest.mark.parametrize(("p", "expected"), [(0.0, 0.0), (1.0, 1.0)])
@pytest.mark.parametrize("dtype", [*FLOATING, *INTEGRAL, torch.bool])
def test_certain_bernoulli_trials(p: float, expected: float, dtype: torch.dtype) -> None:
    assert (filled(lambda t: t.bernoulli_(p), N, dtype).double() == expected).all()
    for p_dtype in FLOATING:
        each = torch.full((N,), p, dtype=p_dtype, device="mtia")
        assert (torch.empty(N, dtype=dtype, device="mtia").bernoulli_(each).cpu().double() == expected).all()


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128, torch.complex32])
def test_complex_numbers(dtype: torch.dtype) -> None:
    drawn = torch.view_as_real(filled(lambda t: t.normal_(0, 2), N, dtype)).double()
    assert drawn.std() == pytest.approx(2**0.5, rel=0.02)
    drawn = torch.view_as_real(filled(lambda t: t.uniform_(1, 2), N, dtype)).double()
    assert drawn.min() >= 1
    assert drawn.max() < 2
    assert drawn.mean() == pytest.approx(1.5, rel=0.01)
