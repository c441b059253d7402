"""What the device draws: the right distributions, the same numbers however they are drawn, the CPU's errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
import torch
from scipy import stats
from torch.nn import functional

import torch_mtia

if TYPE_CHECKING:
    from tests.conftest import RunScript

Fill = Callable[..., torch.Tensor]
FLOATING = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGRAL = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
N = 100_000
ALPHA = 1e-4  # a right distribution fails a test with this probability; the seeds are fixed, so it never does


@pytest.fixture(autouse=True)
def _native_only() -> Iterator[None]:
    with torch_mtia.fallback.forbid():
        yield


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def filled(fill: Fill, size: int | tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """What `fill` draws into a new tensor with seed 1."""
    torch.mtia.manual_seed(1)
    return fill(torch.empty(size, dtype=dtype, device="mtia")).cpu()


# The operators that fill a tensor in place.
FILLS: dict[str, Fill] = {
    "uniform_": lambda t, **g: t.uniform_(-2, 3, **g),
    "normal_": lambda t, **g: t.normal_(2, 3, **g),
    "log_normal_": lambda t, **g: t.log_normal_(0.5, 0.25, **g),
    "exponential_": lambda t, **g: t.exponential_(0.5, **g),
    "cauchy_": lambda t, **g: t.cauchy_(1, 2, **g),
    "geometric_": lambda t, **g: t.geometric_(0.3, **g),
    "bernoulli_": lambda t, **g: t.bernoulli_(0.3, **g),
    "bernoulli_ of a tensor": lambda t, **g: t.bernoulli_(torch.full(t.shape, 0.3, device=t.device), **g),
    "random_": lambda t, **g: t.random_(**g),
    "random_ to": lambda t, **g: t.random_(100, **g),
    "random_ from": lambda t, **g: t.random_(-20, 100, **g),
}
# The operators that make a tensor of another.
MAPS: dict[str, Fill] = {
    "bernoulli": lambda t, **g: torch.bernoulli(t, **g),
    "normal of a mean": lambda t, **g: torch.normal(t, 2.0, **g),
    "normal of a std": lambda t, **g: torch.normal(1.0, t, **g),
    "normal of both": lambda t, **g: torch.normal(t, t, **g),
    "poisson": lambda t, **g: torch.poisson(t * 20, **g),
    "binomial": lambda t, **g: torch.binomial(t * 0 + 40, t, **g),
    "gamma": lambda t, **g: torch._standard_gamma(t * 3, **g),
    "dirichlet": lambda t, **g: torch._sample_dirichlet(t, **g),
    "dropout": lambda t: torch.native_dropout(t, 0.4, True)[0],
    "mask of dropout": lambda t: torch.native_dropout(t, 0.4, True)[1],
    "rrelu": lambda t: functional.rrelu(t - 0.5, training=True),
}


# The algorithm -------------------------------------------------------------------------------------------------------


def philox(counter: int, seed: int) -> list[int]:
    """Philox 4x32-10, once more, in Python."""
    c = [counter & 0xFFFFFFFF, counter >> 32 & 0xFFFFFFFF, counter >> 64 & 0xFFFFFFFF, counter >> 96]
    key = [seed & 0xFFFFFFFF, seed >> 32]
    for _ in range(10):
        first, second = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [second >> 32 ^ c[1] ^ key[0], second & 0xFFFFFFFF, first >> 32 ^ c[3] ^ key[1], first & 0xFFFFFFFF]
        key = [(key[0] + 0x9E3779B9) & 0xFFFFFFFF, (key[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c


def test_philox_of_this_file_gives_the_published_words() -> None:
    assert philox(0, 0) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    assert philox(2**128 - 1, 2**64 - 1) == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]


@pytest.mark.parametrize("offset", [0, 4, 2**34])
def test_the_words_are_those_of_philox(offset: int) -> None:
    seed = 0x123456789ABCDEF0
    generator = torch.Generator("mtia").manual_seed(seed)
    generator.set_offset(offset)
    drawn = torch.empty(200, dtype=torch.float32, device="mtia").uniform_(generator=generator)
    expected = []
    for i in range(200):
        tile, word = divmod(i, 64)
        lane, counter = divmod(word, 16)
        expected.append((philox(offset // 4 + 16 * tile + counter, seed)[lane] >> 8) / 2**24)
    assert drawn.tolist() == expected
    assert generator.get_offset() == offset + 4 * 64


# The same numbers ----------------------------------------------------------------------------------------------------

SIZES = (1, 16, 63, 64, 65, 511, 513, 16 * 1024 - 1, 16 * 1024 + 1, 3 * 16 * 1024 + 7)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", FILLS)
def test_the_numbers_do_not_depend_on_the_number_of_threads(name: str, dtype: torch.dtype) -> None:
    for size in SIZES:
        with threads(1):
            alone = filled(FILLS[name], size, dtype)
        with threads(2):
            assert torch.equal(filled(FILLS[name], size, dtype), alone)


@pytest.mark.parametrize("name", FILLS)
def test_a_longer_draw_begins_like_a_shorter_one(name: str) -> None:
    long = filled(FILLS[name], max(SIZES))
    for size in SIZES:
        assert torch.equal(filled(FILLS[name], size), long[:size])


@pytest.mark.parametrize("name", MAPS)
def test_the_numbers_of_maps_do_not_depend_on_the_number_of_threads(name: str) -> None:
    p = torch.rand(300, 70).to("mtia")
    with threads(1):
        torch.mtia.manual_seed(1)
        alone = MAPS[name](p).cpu()
    with threads(2):
        torch.mtia.manual_seed(1)
        assert torch.equal(MAPS[name](p).cpu(), alone)


def layouts(size: tuple[int, int, int, int], dtype: torch.dtype) -> dict[str, torch.Tensor]:
    a, b, c, d = size
    return {
        "transposed": torch.empty((d, c, b, a), dtype=dtype, device="mtia").permute(3, 2, 1, 0),
        "channels last": torch.empty(size, dtype=dtype, device="mtia", memory_format=torch.channels_last),
        "with gaps": torch.empty((a, b, 2 * c, 3 * d), dtype=dtype, device="mtia")[:, :, ::2, 1::3],
        "not at the start": torch.empty((a + 1, b, c, d), dtype=dtype, device="mtia")[1:],
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
@pytest.mark.parametrize("name", FILLS)
def test_the_numbers_do_not_depend_on_strides(name: str, dtype: torch.dtype) -> None:
    size = (3, 5, 7, 11)
    expected = filled(FILLS[name], size, dtype)
    for tensor in layouts(size, dtype).values():
        torch.mtia.manual_seed(1)
        assert torch.equal(FILLS[name](tensor).cpu(), expected)


@pytest.mark.parametrize("name", MAPS)
def test_the_numbers_of_maps_do_not_depend_on_strides(name: str) -> None:
    p = torch.rand(3, 5, 7, 11)
    torch.mtia.manual_seed(1)
    expected = MAPS[name](p.to("mtia")).cpu()
    for tensor in layouts((3, 5, 7, 11), torch.float32).values():
        tensor.copy_(p)
        torch.mtia.manual_seed(1)
        assert torch.equal(MAPS[name](tensor).cpu(), expected)


def test_elements_beside_a_view_are_left_alone() -> None:
    base = torch.full((6, 8), -1.0, device="mtia")
    base[1:5, 2::2].uniform_()
    drawn = torch.zeros(6, 8, dtype=torch.bool)
    drawn[1:5, 2::2] = True
    assert torch.equal(base.cpu() != -1, drawn)


@pytest.mark.parametrize("name", FILLS)
def test_a_busy_stream_gives_the_numbers_of_an_idle_one(name: str) -> None:
    expected = filled(FILLS[name], 100)
    torch.mtia.manual_seed(1)
    a = torch.ones(2**21, device="mtia")
    for _ in range(5):
        a.mul_(1.0)
    assert torch.equal(FILLS[name](torch.empty(100, device="mtia")).cpu(), expected)


@pytest.mark.parametrize("name", [*FILLS, *MAPS])
def test_calls_draw_numbers_of_their_own(name: str) -> None:
    draw = FILLS.get(name) or MAPS[name]
    torch.mtia.manual_seed(1)
    first, second = (draw(torch.full((1000,), 0.25, device="mtia")).cpu() for _ in range(2))
    assert not torch.equal(first, second)
    torch.mtia.manual_seed(1)
    assert torch.equal(draw(torch.full((1000,), 0.25, device="mtia")).cpu(), first)


def test_the_state_can_be_restored_between_draws() -> None:
    torch.mtia.manual_seed(1)
    torch.rand(100, device="mtia")
    state = torch.mtia.get_rng_state()
    first = [torch.randn(70, device="mtia").cpu(), torch.poisson(torch.ones(70, device="mtia")).cpu()]
    torch.mtia.set_rng_state(state)
    assert torch.equal(torch.randn(70, device="mtia").cpu(), first[0])
    assert torch.equal(torch.poisson(torch.ones(70, device="mtia")).cpu(), first[1])


def test_calls_of_several_kinds_never_share_a_counter() -> None:
    generator = torch.Generator("mtia").manual_seed(1)
    draws: list[Callable[[], Any]] = [
        lambda: torch.empty(65, device="mtia").uniform_(generator=generator),
        lambda: torch.poisson(torch.ones(100, device="mtia"), generator=generator),
        lambda: torch.randperm(33, device="mtia", generator=generator),
    ]
    offsets = []
    for draw in draws:
        before = generator.get_offset()
        draw()
        offsets.append(generator.get_offset() - before)
    assert offsets == [128, 400, 128]


@pytest.mark.parametrize("name", [*FILLS, *(name for name in MAPS if "dropout" not in name and name != "rrelu")])
def test_generator_arguments(name: str) -> None:
    draw = FILLS.get(name) or MAPS[name]
    p = torch.full((100,), 0.5)
    default = torch.mtia.get_rng_state()
    first = draw(p.to("mtia"), generator=torch.Generator("mtia").manual_seed(3)).cpu()
    assert torch.equal(draw(p.to("mtia"), generator=torch.Generator("mtia").manual_seed(3)).cpu(), first)
    assert torch.equal(torch.mtia.get_rng_state(), default)
    with pytest.raises(RuntimeError, match=r"Expected a 'mtia' device type for generator but found 'cpu'"):
        draw(p.to("mtia"), generator=torch.Generator())


def test_a_generator_of_another_device_is_refused(run_script: RunScript) -> None:
    finished = run_script(
        """
        import torch
        try:
            torch.empty(3, device="mtia:0").uniform_(generator=torch.Generator("mtia:1"))
        except RuntimeError as error:
            print(error)
        """,
        TORCH_MTIA_DEVICES="2",
    )
    assert "Expected a 'mtia:0' generator device but found 'mtia:1'" in finished.output()


# Distributions -------------------------------------------------------------------------------------------------------


def gamma_of(alpha: float) -> Fill:
    return lambda t: torch._standard_gamma(t.fill_(alpha))


CONTINUOUS: dict[str, tuple[Fill, Any]] = {
    "uniform_": (FILLS["uniform_"], stats.uniform(-2, 5)),
    "normal_": (FILLS["normal_"], stats.norm(2, 3)),
    "log_normal_": (FILLS["log_normal_"], stats.lognorm(0.25, scale=2.718281828459045**0.5)),
    "exponential_": (FILLS["exponential_"], stats.expon(scale=2)),
    "cauchy_": (FILLS["cauchy_"], stats.cauchy(1, 2)),
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
    for fill in (FILLS["uniform_"], FILLS["normal_"]):
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
    "geometric_": (FILLS["geometric_"], stats.geom(0.3).pmf, range(1, 20)),
    "bernoulli_": (FILLS["bernoulli_"], stats.bernoulli(0.3).pmf, range(2)),
    "bernoulli_ of a tensor": (FILLS["bernoulli_ of a tensor"], stats.bernoulli(0.3).pmf, range(2)),
    "random_ to": (FILLS["random_ to"], stats.randint(0, 100).pmf, range(100)),
    "random_ from": (FILLS["random_ from"], stats.randint(-20, 100).pmf, range(-20, 100)),
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


# Shapes, results, arguments ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FILLS)
@pytest.mark.parametrize("size", [(), (0,), (3, 0, 2)])
def test_small_shapes(name: str, size: tuple[int, ...]) -> None:
    tensor = torch.full(size, -77.0, device="mtia")
    state = torch.mtia.get_rng_state()
    assert FILLS[name](tensor) is tensor
    assert torch.equal(state, torch.mtia.get_rng_state()) == (tensor.numel() == 0)
    assert (tensor.cpu() != -77).all()


@pytest.mark.parametrize("name", MAPS)
@pytest.mark.parametrize("size", [(), (0,), (3, 0, 2)])
def test_small_shapes_of_maps(name: str, size: tuple[int, ...]) -> None:
    assert MAPS[name](torch.full(size, 0.5, device="mtia")).shape == size


@pytest.mark.parametrize("name", ["bernoulli", "normal of a std", "normal of both"])
def test_out_is_resized_and_returned(name: str) -> None:
    p = torch.rand(4, 5).to("mtia")
    torch.mtia.manual_seed(1)
    expected = MAPS[name](p).cpu()
    for out in (torch.empty(0, device="mtia"), torch.empty(5, 4, device="mtia").t()):
        torch.mtia.manual_seed(1)
        assert MAPS[name](p, out=out) is out
        assert torch.equal(out.cpu(), expected)


def test_out_of_draws_from_sets() -> None:
    torch.mtia.manual_seed(1)
    expected = torch.randperm(50, device="mtia").cpu()
    strided = torch.empty(100, dtype=torch.int64, device="mtia")[::2]
    for out in (torch.empty(0, dtype=torch.int64, device="mtia"), strided):
        torch.mtia.manual_seed(1)
        assert torch.randperm(50, out=out, device="mtia") is out
        assert torch.equal(out.cpu(), expected)
    weights = torch.ones(3, 4, device="mtia")
    torch.mtia.manual_seed(1)
    samples = torch.multinomial(weights, 2).cpu()
    out = torch.empty(0, dtype=torch.int64, device="mtia")
    torch.mtia.manual_seed(1)
    assert torch.equal(torch.multinomial(weights, 2, out=out).cpu(), samples)


def test_normal_broadcasts_its_arguments() -> None:
    torch.mtia.manual_seed(1)
    drawn = torch.normal(torch.arange(3.0).to("mtia").unsqueeze(1) * 100, torch.tensor([0.0, 1.0]).to("mtia")).cpu()
    assert drawn.shape == (3, 2)
    assert drawn[:, 0].tolist() == [0, 100, 200]
    assert (drawn[:, 1] - torch.tensor([0.0, 100.0, 200.0])).abs().max() < 7


@pytest.mark.parametrize(
    ("mean", "std"), [(torch.float32, torch.float64), (torch.float64, torch.float32), (torch.complex64, torch.float32)]
)
def test_normal_of_several_dtypes(mean: torch.dtype, std: torch.dtype) -> None:
    means, stds = torch.full((N,), 5, dtype=mean), torch.full((N,), 2, dtype=std)
    torch.mtia.manual_seed(1)
    drawn = torch.normal(means.to("mtia"), stds.to("mtia")).cpu()
    assert drawn.dtype is torch.normal(means, stds).dtype
    assert abs(drawn.mean() - 5) < 0.05
    assert float(drawn.std()) == pytest.approx(2, rel=0.02)


def test_a_probability_on_the_cpu() -> None:
    assert (torch.zeros(10, device="mtia").bernoulli_(torch.tensor(1.0)).cpu() == 1).all()


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.float32, torch.float16, torch.bfloat16])
def test_permutations_have_the_dtype_asked_for(dtype: torch.dtype) -> None:
    drawn = torch.randperm(100, dtype=dtype, device="mtia").cpu()
    assert drawn.dtype is dtype
    assert sorted(drawn.tolist()) == list(range(100))


# Each is raised at the call, with the words of the CPU.
BAD_CALLS: dict[str, Callable[[str], Any]] = {
    "uniform_ from above to": lambda d: torch.empty(3, device=d).uniform_(2, 1),
    "uniform_ beyond the dtype": lambda d: torch.empty(3, device=d, dtype=torch.float16).uniform_(0, 1e6),
    "uniform_ wider than the dtype": lambda d: torch.empty(3, device=d).uniform_(-3e38, 3e38),
    "uniform_ of integers": lambda d: torch.empty(3, device=d, dtype=torch.int64).uniform_(),
    "normal_ with a negative std": lambda d: torch.empty(3, device=d).normal_(0, -1),
    "normal_ of integers": lambda d: torch.empty(3, device=d, dtype=torch.int64).normal_(),
    "normal with a negative std": lambda d: torch.normal(torch.zeros(3, device=d), -1.0),
    "normal with a complex std": lambda d: torch.normal(0.0, torch.ones(3, device=d, dtype=torch.complex64)),
    "normal of integers": lambda d: torch.normal(torch.ones(3, device=d, dtype=torch.int64), 1.0),
    "normal of unlike sizes": lambda d: torch.normal(torch.zeros(3, device=d), torch.ones(2, device=d)),
    "log_normal_ without deviation": lambda d: torch.empty(3, device=d).log_normal_(0, 0),
    "log_normal_ of integers": lambda d: torch.empty(3, device=d, dtype=torch.int64).log_normal_(),
    "exponential_ with a negative rate": lambda d: torch.empty(3, device=d).exponential_(-1),
    "exponential_ of integers": lambda d: torch.empty(3, device=d, dtype=torch.int64).exponential_(),
    "cauchy_ with a negative scale": lambda d: torch.empty(3, device=d).cauchy_(0, -1),
    "cauchy_ of integers": lambda d: torch.empty(3, device=d, dtype=torch.int64).cauchy_(),
    "geometric_ of 0": lambda d: torch.empty(3, device=d).geometric_(0),
    "geometric_ of 1": lambda d: torch.empty(3, device=d).geometric_(1),
    "geometric_ of bool": lambda d: torch.empty(3, device=d, dtype=torch.bool).geometric_(0.5),
    "bernoulli_ above 1": lambda d: torch.empty(3, device=d).bernoulli_(1.5),
    "bernoulli_ of complex": lambda d: torch.empty(3, device=d, dtype=torch.complex64).bernoulli_(0.5),
    "bernoulli_ with integers": lambda d: torch.empty(3, device=d).bernoulli_(torch.ones(3, device=d).long()),
    "bernoulli_ with unlike sizes": lambda d: torch.empty(3, device=d).bernoulli_(torch.ones(2, device=d)),
    "random_ from above to": lambda d: torch.empty(3, device=d).random_(3, 1),
    "random_ beyond the dtype": lambda d: torch.empty(3, device=d, dtype=torch.uint8).random_(300),
    "random_ of complex": lambda d: torch.empty(3, device=d, dtype=torch.complex64).random_(),
    "random_ of 64 bits of int32": lambda d: torch.empty(3, device=d, dtype=torch.int32).random_(-(2**63), None),
    "an expanded tensor, uniform_": lambda d: torch.empty(1, device=d).expand(3).uniform_(),
    "an expanded tensor, normal_": lambda d: torch.empty(1, device=d).expand(3).normal_(),
    "an expanded tensor, bernoulli_": lambda d: torch.empty(1, device=d).expand(3).bernoulli_(),
    "dropout above 1": lambda d: functional.dropout(torch.ones(3, device=d), 1.5),
    "native_dropout above 1": lambda d: torch.native_dropout(torch.ones(3, device=d), 1.5, True),
    "native_dropout of integers": lambda d: torch.native_dropout(torch.ones(3, device=d).long(), 0.5, True),
    "rrelu with a noise of another size": lambda d: torch.ops.aten.rrelu_with_noise(
        torch.ones(3, device=d), torch.ones(2, device=d), 0.1, 0.3, True
    ),
    "rrelu with a noise of another dtype": lambda d: torch.ops.aten.rrelu_with_noise(
        torch.ones(3, device=d), torch.ones(3, device=d).double(), 0.1, 0.3, True
    ),
    "rrelu of integers": lambda d: functional.rrelu(torch.ones(3, device=d).long(), training=True),
    "randperm beyond the dtype": lambda d: torch.randperm(300, dtype=torch.uint8, device=d),
    "randperm beyond the precision": lambda d: torch.randperm(3000, dtype=torch.float16, device=d),
    "randperm of bool": lambda d: torch.randperm(2, dtype=torch.bool, device=d),
    "multinomial of too many": lambda d: torch.multinomial(torch.ones(3, device=d), 4),
    "multinomial of none": lambda d: torch.multinomial(torch.ones(3, device=d), 0),
    "multinomial of three dimensions": lambda d: torch.multinomial(torch.ones(3, 3, 3, device=d), 1),
    "multinomial of no dimension": lambda d: torch.multinomial(torch.ones((), device=d), 1),
    "multinomial of integers": lambda d: torch.multinomial(torch.ones(3, device=d).long(), 1),
    "multinomial into floats": lambda d: torch.multinomial(torch.ones(3, device=d), 2, out=torch.ones(2, device=d)),
    "poisson of integers": lambda d: torch.poisson(torch.ones(3, device=d).long()),
    "gamma of half": lambda d: torch._standard_gamma(torch.ones(3, device=d).half()),
    "dirichlet of half": lambda d: torch._sample_dirichlet(torch.ones(3, device=d).half()),
    "binomial of integers": lambda d: torch.binomial(torch.ones(3, device=d).long(), torch.ones(3, device=d)),
    "binomial of unlike dtypes": lambda d: torch.binomial(torch.ones(3, device=d), torch.ones(3, device=d).double()),
}


@pytest.mark.parametrize("name", BAD_CALLS)
def test_a_bad_argument_is_refused_at_the_call_as_on_the_cpu(name: str) -> None:
    with pytest.raises(Exception) as expected:  # noqa: PT011  whatever the CPU raises
        BAD_CALLS[name]("cpu")
    state = torch.mtia.get_rng_state()
    with pytest.raises(type(expected.value)) as actual:
        BAD_CALLS[name]("mtia")
    assert str(actual.value).split("\n")[0] == str(expected.value).split("\n")[0]
    assert torch.equal(torch.mtia.get_rng_state(), state)


# Raised at the next synchronizing call, because only the data shows it.
BAD_DATA: dict[str, tuple[Callable[[], Any], str]] = {
    "bernoulli above 1": (lambda: torch.bernoulli(torch.full((3,), 1.5, device="mtia")), r"in \[0, 1\]"),
    "bernoulli of nan": (lambda: torch.bernoulli(torch.full((3,), float("nan"), device="mtia")), r"in \[0, 1\]"),
    "normal": (
        lambda: torch.normal(0.0, torch.full((3,), -1.0, device="mtia")),
        "normal expects all elements of std >= 0.0",
    ),
    "normal of two dtypes": (
        lambda: torch.normal(torch.ones(3, device="mtia"), torch.full((3,), -1.0, device="mtia").double()),
        "normal expects all elements of std >= 0.0",
    ),
    "poisson": (
        lambda: torch.poisson(torch.full((3,), -1.0, device="mtia")),
        "invalid Poisson rate, expected rate to be non-negative",
    ),
    "poisson of nan": (lambda: torch.poisson(torch.full((3,), float("nan"), device="mtia")), "invalid Poisson rate"),
    "multinomial": (
        lambda: torch.multinomial(torch.full((3,), -1.0, device="mtia"), 1),
        "probability tensor contains either `inf`, `nan` or element < 0",
    ),
    "multinomial of zeros": (
        lambda: torch.multinomial(torch.zeros(3, device="mtia"), 2),
        r"invalid multinomial distribution \(sum of probabilities <= 0\)",
    ),
    "multinomial with replacement": (
        lambda: torch.multinomial(torch.full((3,), -1.0, device="mtia"), 2, True),
        r"invalid multinomial distribution \(encountering probability entry < 0\)",
    ),
}


@pytest.mark.parametrize("name", BAD_DATA)
def test_bad_data_is_reported_by_the_stream(name: str) -> None:
    call, message = BAD_DATA[name]
    call()
    with pytest.raises(RuntimeError, match=message):
        torch.mtia.synchronize()
    assert torch.rand(3, device="mtia").cpu().numel() == 3


def test_gamma_of_what_has_none_is_nan() -> None:
    assert torch._standard_gamma(torch.full((2,), -1.0, device="mtia")).cpu().isnan().all()
    assert torch._standard_gamma(torch.full((2,), float("nan"), device="mtia")).cpu().isnan().all()


# Dropout -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [*FLOATING, torch.complex64])
@pytest.mark.parametrize("size", [(1,), (64,), (7, 33), (3, 5, 7, 11), (70_001,)])
def test_dropout_scales_what_it_keeps(dtype: torch.dtype, size: tuple[int, ...]) -> None:
    x = torch.randn(size, dtype=dtype)
    output, mask = (t.cpu() for t in torch.native_dropout(x.to("mtia"), 0.3, True))
    assert (output.dtype, mask.dtype) == (dtype, torch.bool)
    torch.testing.assert_close(output, x.mul(mask).mul_(1 / 0.7))
    grad = torch.randn(size, dtype=dtype)
    backward = torch.ops.aten.native_dropout_backward
    expected = backward(grad, mask, 1 / 0.7)
    torch.testing.assert_close(backward(grad.to("mtia"), mask.to("mtia"), 1 / 0.7).cpu(), expected)


def test_dropout_keeps_the_layout() -> None:
    x = torch.randn(2, 3, 4, 5).to("mtia").to(memory_format=torch.channels_last)
    output, mask = torch.native_dropout(x, 0.3, True)
    assert output.stride() == mask.stride() == x.stride()
    assert torch.equal(output.cpu() != 0, mask.cpu())
    gaps = torch.randn(6, 8).to("mtia")[:, ::2]
    assert torch.native_dropout(gaps, 0.3, True)[0].stride() == (4, 1)


def test_dropout_lets_nan_and_infinity_through_as_on_the_cpu() -> None:
    x = torch.tensor([float("nan"), float("inf")]).repeat(50)
    output, mask = (t.cpu() for t in torch.native_dropout(x.to("mtia"), 0.5, True))
    torch.testing.assert_close(output, x.mul(mask).mul_(2), equal_nan=True)


@pytest.mark.parametrize("train", [True, None])
@pytest.mark.parametrize(("p", "kept"), [(0.0, True), (1.0, False)])
def test_native_dropout_of_all_or_nothing(train: bool | None, p: float, kept: bool) -> None:
    output, mask = (t.cpu() for t in torch.native_dropout(torch.full((100,), 3.0, device="mtia"), p, train))
    assert (mask == kept).all()
    assert (output == (3.0 if kept else 0.0)).all()


def test_native_dropout_in_evaluation_copies() -> None:
    x = torch.randn(10).to("mtia")
    output, mask = torch.native_dropout(x, 0.5, False)
    assert output.data_ptr() != x.data_ptr()
    assert torch.equal(output.cpu(), x.cpu())
    assert mask.cpu().all()


def test_dropout_is_differentiated_with_its_mask() -> None:
    x = torch.randn(1000).to("mtia").requires_grad_()
    output = functional.dropout(x, 0.25)
    assert output.grad_fn is not None
    assert output.grad_fn.name() == "NativeDropoutBackward0"
    grad = torch.randn(1000)
    output.backward(grad.to("mtia"))
    assert x.grad is not None
    kept = output.detach().cpu() != 0
    assert 600 < int(kept.sum()) < 900
    torch.testing.assert_close(x.grad.cpu(), grad * kept / 0.75)


def test_dropout_that_drops_nothing_is_the_input() -> None:
    x = torch.randn(10).to("mtia").requires_grad_()
    assert functional.dropout(x, 0.5, training=False) is x
    assert functional.dropout(x, 0.0) is x
    module = torch.nn.Dropout(0.5).eval()
    assert module(x) is x


def test_dropout_of_everything() -> None:
    x = torch.randn(10).to("mtia").requires_grad_()
    output = functional.dropout(x, 1.0)
    assert (output.detach().cpu() == 0).all()
    output.backward(torch.ones(10, device="mtia"))
    assert x.grad is not None
    assert (x.grad.cpu() == 0).all()


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_dropout_without_autograd(context: Callable[[], Any]) -> None:
    with context():
        output = functional.dropout(torch.ones(1000, device="mtia"), 0.5)
    assert set(output.cpu().tolist()) == {0.0, 2.0}


def test_rrelu() -> None:
    x = torch.randn(1000)
    noise = torch.empty(1000, device="mtia")
    output = torch.ops.aten.rrelu_with_noise(x.to("mtia"), noise, 0.1, 0.3, True).cpu()
    slopes = noise.cpu()
    assert (slopes[x > 0] == 1).all()
    assert slopes[x <= 0].min() >= 0.1
    assert slopes[x <= 0].max() <= 0.3
    assert torch.equal(output, x * slopes)
    in_evaluation = functional.rrelu(x.to("mtia"), 0.1, 0.3, training=False).cpu()
    torch.testing.assert_close(in_evaluation, functional.rrelu(x, 0.1, 0.3, training=False))
    in_place = x.to("mtia")
    assert functional.rrelu_(in_place, 0.1, 0.3, training=False) is in_place
    torch.testing.assert_close(in_place.cpu(), in_evaluation)
    with_gradient = x.to("mtia").requires_grad_()
    functional.rrelu(with_gradient, 0.1, 0.3, training=True).backward(torch.ones(1000, device="mtia"))
    assert with_gradient.grad is not None
    assert (with_gradient.grad.cpu()[x > 0] == 1).all()
    assert with_gradient.grad.cpu()[x <= 0].max() <= 0.3


# Asynchrony ----------------------------------------------------------------------------------------------------------


def test_a_draw_does_not_wait_for_the_stream(run_script: RunScript) -> None:
    """Large draws return while the stream is still at work on the first."""
    finished = run_script(
        """
        import torch
        x = torch.empty(2**24, device="mtia")
        stream = torch.accelerator.current_stream()
        waiting = 0
        for draw in (x.uniform_, x.normal_, x.exponential_, x.cauchy_, x.log_normal_, lambda: x.bernoulli_(0.5),
                     lambda: x.random_(10), lambda: x.geometric_(0.5), lambda: torch.native_dropout(x, 0.5, True)):
            x.log_normal_()
            x.log_normal_()
            draw()
            waiting += not stream.query()
        torch.mtia.synchronize()
        print(waiting)
        """
    )
    assert int(finished.output()) == 9
