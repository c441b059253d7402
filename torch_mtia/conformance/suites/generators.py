"""Generators: seeds, states, and that no two numbers have to do with each other."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from torch_mtia.conformance.database import CPU
from torch_mtia.conformance.statistics import assert_independent

pytestmark = pytest.mark.filterwarnings("ignore")

N = 50_000


def generator(device: torch.device, seed: int = 0) -> torch.Generator:
    return torch.Generator(device).manual_seed(seed)


def get_state(device: torch.device) -> torch.Tensor:
    return torch.get_rng_state() if device == CPU else torch.get_device_module(device).get_rng_state()


def set_state(device: torch.device, state: torch.Tensor) -> None:
    torch.set_rng_state(state) if device == CPU else torch.get_device_module(device).set_rng_state(state)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(2026)


DRAWS: dict[str, Callable[..., torch.Tensor]] = {
    "rand": lambda **kw: torch.rand(1001, **kw),
    "randn": lambda **kw: torch.randn(1001, **kw),
    "randint": lambda **kw: torch.randint(0, 1 << 40, (1001,), **kw),
    "randperm": lambda **kw: torch.randperm(1001, **kw),
    "bernoulli": lambda generator, device: torch.empty(1001, device=device).bernoulli_(generator=generator),
    "exponential": lambda generator, device: torch.empty(1001, device=device).exponential_(generator=generator),
    "multinomial": lambda generator, device: torch.multinomial(
        torch.ones(1001, device=device), 500, generator=generator
    ),
}


@pytest.mark.parametrize("name", DRAWS)
def test_a_generator(device: torch.device, name: str) -> None:
    """Equal seeds give equal numbers, other seeds others; each draw is new; the state brings back what it was of."""

    def draw(source: torch.Generator) -> torch.Tensor:
        return DRAWS[name](generator=source, device=device)

    source, same, other = generator(device, 5), generator(device, 5), generator(device, 6)
    first = draw(source)
    assert torch.equal(first, draw(same))
    assert not torch.equal(first, draw(other))
    state = source.get_state()
    second = draw(source)
    assert not torch.equal(first, second)
    assert not torch.equal(state, source.get_state())
    same.set_state(state)
    assert torch.equal(draw(same), second)
    assert torch.equal(draw(source.manual_seed(5)), first)


@pytest.mark.parametrize("seed", [0, 1, -1, 2**31, 2**63 - 1, 2**64 - 1])
def test_seeds(device: torch.device, seed: int) -> None:
    source = generator(device, seed)
    assert source.initial_seed() == seed % 2**64
    assert source.device == device
    assert torch.equal(
        torch.rand(9, device=device, generator=source), torch.rand(9, device=device, generator=generator(device, seed))
    )


def test_generators_do_not_share(device: torch.device) -> None:
    state = get_state(device)
    own, other = generator(device, 1), generator(device, 2)
    before = other.get_state()
    torch.rand(100, device=device, generator=own)
    assert torch.equal(get_state(device), state)
    assert torch.equal(other.get_state(), before)
    assert_independent(torch.rand(N, device=device, generator=own), torch.rand(N, device=device, generator=other))


def test_no_number_comes_twice(device: torch.device) -> None:
    """Of 62 bits, from generators of seeds side by side and draw after draw, of lengths that are no power of 2."""
    drawn = [
        torch.randint(0, 2**62, (length,), device=device, generator=source)
        for source in (generator(device, seed) for seed in range(4))
        for length in (1, 3, 255, 1000, 4097)
    ]
    drawn += [torch.randint(0, 2**62, (777,), device=device) for _ in range(20)]
    every = torch.cat(drawn).cpu()
    assert len(every.unique()) == len(every)


def test_draws_are_independent_of_their_neighbours(device: torch.device) -> None:
    x = torch.rand(4 * N, device=device)
    for lag in (1, 2, 3, 4, 5, 8, 16, 32, 64, 128, 256, 1000, 1024):
        assert_independent(x[:-lag], x[lag:])
    first, second = torch.randn(N, device=device), torch.randn(N, device=device)
    assert_independent(first, second)
    assert_independent(first.square(), second.square())


def test_streams_do_not_share_numbers(accelerator: torch.device) -> None:
    drawn = []
    for stream in [torch.Stream(accelerator) for _ in range(4)]:
        with stream:
            drawn.append(torch.randint(0, 2**62, (1000,), device=accelerator))
    torch.accelerator.synchronize()
    assert len(torch.cat(drawn).unique()) == 4000


def test_devices_do_not_share_a_generator(accelerator: torch.device, second: torch.device) -> None:
    state = get_state(accelerator)
    torch.rand(10, device=second)
    assert torch.equal(get_state(accelerator), state)
    torch.manual_seed(1)
    numbers = torch.rand(10, device=accelerator), torch.rand(10, device=second)
    assert torch.equal(numbers[0].cpu(), numbers[1].cpu())


def test_a_generator_of_another_device_is_refused(accelerator: torch.device) -> None:
    with pytest.raises(RuntimeError, match=r"[Gg]enerator"):
        torch.rand(3, device=accelerator, generator=torch.Generator("cpu"))
    with pytest.raises(RuntimeError, match=r"[Gg]enerator"):
        torch.rand(3, generator=torch.Generator(accelerator))


def test_the_global_seed(device: torch.device) -> None:
    torch.manual_seed(7)
    assert torch.initial_seed() == 7
    first = torch.rand(100, device=device), torch.rand(100)
    torch.manual_seed(7)
    again = torch.rand(100, device=device), torch.rand(100)
    assert all(map(torch.equal, first, again))


def test_forked_generators_return(device: torch.device) -> None:
    kind = {} if device == CPU else {"device_type": device.type, "devices": [device.index]}
    before, host = get_state(device), torch.get_rng_state()
    with torch.random.fork_rng(**kind):
        torch.manual_seed(99)
        torch.rand(100, device=device)
        assert not torch.equal(get_state(device), before)
    assert torch.equal(get_state(device), before)
    assert torch.equal(torch.get_rng_state(), host)


def test_a_state_that_is_none_is_refused(device: torch.device) -> None:
    state = get_state(device)
    for wrong in (torch.zeros(3, dtype=torch.uint8), state.float()):
        with pytest.raises((RuntimeError, TypeError)):
            set_state(device, wrong)
    assert torch.equal(get_state(device), state)


def test_checkpoints_draw_the_same_again(device: torch.device) -> None:
    x = torch.ones(N, device=device, requires_grad=True)
    y = checkpoint(lambda x: torch.nn.functional.dropout(x * 1, 0.5), x, use_reentrant=False)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(gradient, y.detach())
