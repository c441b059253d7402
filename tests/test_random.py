"""What the device draws: the same numbers however they are drawn, the CPU's errors, no waiting."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.nn import functional

import torch_mtia
from tests.bits import threads

if TYPE_CHECKING:
    from tests.conftest import RunScript

Fill = Callable[..., torch.Tensor]
FLOATING = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
N = 100_000


@pytest.fixture(autouse=True)
def _native_only() -> Iterator[None]:
    with torch_mtia.fallback.forbid():
        yield


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
            for _ in range(4):
                x.log_normal_()
            draw()
            waiting += not stream.query()
        torch.mtia.synchronize()
        print(waiting)
        """
    )
    assert int(finished.output()) == 9
