"""Random numbers of the device: seeded, reproducible, and apart from the CPU's."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
import torch

if TYPE_CHECKING:
    from tests.conftest import RunScript

Draw = Callable[..., torch.Tensor]
N = 1000

# Each takes generator=.
DRAWS: dict[str, Draw] = {
    "rand": lambda **g: torch.rand(N, device="mtia", **g),
    "randn": lambda **g: torch.randn(N, device="mtia", **g),
    "randint": lambda **g: torch.randint(0, 1000, (N,), device="mtia", **g),
    "randperm": lambda **g: torch.randperm(N, device="mtia", **g),
    "normal_": lambda **g: torch.empty(N, device="mtia").normal_(2, 3, **g),
    "normal": lambda **g: torch.normal(torch.zeros(N, device="mtia"), 1.0, **g),
    "uniform_": lambda **g: torch.empty(N, device="mtia").uniform_(-1, 1, **g),
    "bernoulli": lambda **g: torch.bernoulli(torch.full((N,), 0.5, device="mtia"), **g),
    "bernoulli_": lambda **g: torch.empty(N, device="mtia").bernoulli_(0.3, **g),
    "random_": lambda **g: torch.empty(N, dtype=torch.int64, device="mtia").random_(**g),
    "exponential_": lambda **g: torch.empty(N, device="mtia").exponential_(**g),
    "geometric_": lambda **g: torch.empty(N, device="mtia").geometric_(0.2, **g),
    "cauchy_": lambda **g: torch.empty(N, device="mtia").cauchy_(**g),
    "multinomial": lambda **g: torch.multinomial(torch.ones(N, device="mtia"), 100, **g),
    "poisson": lambda **g: torch.poisson(torch.full((N,), 4.0, device="mtia"), **g),
}
# Draw from the default generator only.
DEFAULT_DRAWS: dict[str, Draw] = DRAWS | {
    "rand_like": lambda: torch.rand_like(torch.ones(N, device="mtia")),
    "dropout": lambda: torch.nn.functional.dropout(torch.ones(N, device="mtia")),
    "rrelu": lambda: torch.nn.functional.rrelu(-torch.ones(N, device="mtia"), training=True),
}


@pytest.mark.parametrize("name", DEFAULT_DRAWS)
def test_a_seed_reproduces_the_numbers(name: str) -> None:
    draw = DEFAULT_DRAWS[name]
    torch.mtia.manual_seed(7)
    first, second = draw(), draw()
    assert not torch.equal(first.cpu(), second.cpu())
    torch.mtia.manual_seed(7)
    assert torch.equal(draw().cpu(), first.cpu())
    assert torch.equal(draw().cpu(), second.cpu())


@pytest.mark.parametrize("name", DEFAULT_DRAWS)
def test_the_state_of_the_cpu_generator_stays_untouched(name: str) -> None:
    before = torch.get_rng_state()
    DEFAULT_DRAWS[name]()
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("name", DRAWS)
def test_a_generator_of_ones_own(name: str) -> None:
    draw, generator = DRAWS[name], torch.Generator("mtia").manual_seed(3)
    default = torch.mtia.get_rng_state()
    first, second = draw(generator=generator), draw(generator=generator)
    assert not torch.equal(first.cpu(), second.cpu())
    assert torch.equal(torch.mtia.get_rng_state(), default)
    assert torch.equal(draw(generator=generator.manual_seed(3)).cpu(), first.cpu())


def test_a_generator_of_the_cpu_is_refused() -> None:
    with pytest.raises(RuntimeError, match=r"Expected a 'mtia(:0)?' device type for generator but found 'cpu'"):
        torch.randn(3, device="mtia", generator=torch.Generator())


def test_tensors_of_the_cpu_refuse_a_generator_of_a_device_that_nothing_used_yet(run_script: RunScript) -> None:
    script = """
        import torch

        generator = torch.Generator("mtia")
        for draw in (
            lambda: torch.multinomial(torch.ones(4), 2, generator=generator),
            lambda: torch.randperm(4, generator=generator),
        ):
            try:
                draw()
            except RuntimeError as error:
                print(type(error).__name__, error)
    """
    assert run_script(script).output() == "RuntimeError Expected a 'cpu' generator device but found 'mtia:0'\n" * 2


def test_different_seeds_give_different_numbers() -> None:
    draws = {
        tuple(torch.rand(4, device="mtia", generator=torch.Generator("mtia").manual_seed(s)).tolist())
        for s in range(50)
    }
    assert len(draws) == 50


def test_numbers_are_distributed_as_they_should_be() -> None:
    uniform, normal = torch.rand(2**20, device="mtia").cpu(), torch.randn(2**20, device="mtia").cpu()
    assert 0 <= uniform.min() < 1e-4
    assert 1 - 1e-4 < uniform.max() < 1
    assert uniform.mean() == pytest.approx(0.5, abs=5e-3)
    assert normal.mean() == pytest.approx(0, abs=1e-2)
    assert normal.std() == pytest.approx(1, abs=1e-2)


# The generator -------------------------------------------------------------------------------------------------------


def test_a_new_generator() -> None:
    generator = torch.Generator("mtia")
    assert generator.device == torch.device("mtia", 0)
    assert generator.initial_seed() == torch.Generator().initial_seed()
    assert generator.manual_seed(-1) is generator
    assert generator.initial_seed() == 2**64 - 1
    seed = generator.seed()
    assert generator.initial_seed() == seed
    assert generator.seed() != seed


def test_the_state_can_be_saved_and_restored() -> None:
    generator = torch.Generator("mtia").manual_seed(5)
    torch.rand(10, device="mtia", generator=generator)
    state = generator.get_state()
    assert (state.device.type, state.dtype) == ("cpu", torch.uint8)
    expected = torch.rand(10, device="mtia", generator=generator)
    for other in (generator, torch.Generator("mtia")):
        other.set_state(state)
        assert other.initial_seed() == 5
        assert torch.equal(torch.rand(10, device="mtia", generator=other).cpu(), expected.cpu())


def test_a_wrong_state_is_refused() -> None:
    generator = torch.Generator("mtia").manual_seed(5)
    for state in (torch.zeros(3, dtype=torch.uint8), torch.zeros(16, dtype=torch.float32)):
        with pytest.raises((RuntimeError, TypeError)):
            generator.set_state(state)
    assert generator.initial_seed() == 5


def test_a_refused_state_changes_nothing() -> None:
    generator = torch.Generator("mtia").manual_seed(5)
    generator.set_offset(1024)
    with pytest.raises(ValueError, match="multiple of 4, got 3"):
        generator.set_state(torch.tensor([77, 3]).view(torch.uint8))
    assert (generator.initial_seed(), generator.get_offset()) == (5, 1024)


def test_the_offset_advances_and_can_be_set() -> None:
    generator = torch.Generator("mtia").manual_seed(5)
    assert generator.get_offset() == 0
    first = torch.rand(16, device="mtia", generator=generator)
    offset = generator.get_offset()
    assert offset > 0
    torch.rand(16, device="mtia", generator=generator)
    assert generator.get_offset() > offset
    generator.set_offset(0)
    assert torch.equal(torch.rand(16, device="mtia", generator=generator).cpu(), first.cpu())
    assert generator.get_offset() == offset


def test_a_copy_of_a_generator_draws_the_same_numbers() -> None:
    generator = torch.Generator("mtia").manual_seed(5)
    torch.rand(3, device="mtia", generator=generator)
    copies = [generator.clone_state(), pickle.loads(pickle.dumps(generator)), copy.deepcopy(generator)]
    expected = torch.rand(3, device="mtia", generator=generator)
    for other in copies:
        assert other.device == generator.device
        assert torch.equal(torch.rand(3, device="mtia", generator=other).cpu(), expected.cpu())


# The default generators ----------------------------------------------------------------------------------------------


def test_there_is_a_default_generator_for_each_device() -> None:
    torch.mtia.init()
    assert len(torch.mtia.default_generators) == torch.mtia.device_count()
    assert torch.mtia.default_generators[0].device == torch.device("mtia", 0)


def test_the_global_seed_is_that_of_the_device_too() -> None:
    torch.manual_seed(11)
    assert torch.mtia.initial_seed() == 11
    first = torch.rand(5, device="mtia")
    torch.manual_seed(11)
    assert torch.equal(torch.rand(5, device="mtia").cpu(), first.cpu())


def test_a_seed_of_the_device_leaves_the_cpu_alone() -> None:
    before = torch.initial_seed()
    torch.mtia.manual_seed(13)
    assert (torch.mtia.initial_seed(), torch.initial_seed()) == (13, before)


def test_the_state_of_the_device_can_be_saved_and_restored() -> None:
    state, states = torch.mtia.get_rng_state(), torch.mtia.get_rng_state_all()
    assert len(states) == torch.mtia.device_count()
    first = torch.rand(5, device="mtia")
    torch.mtia.set_rng_state(state)
    assert torch.equal(torch.rand(5, device="mtia").cpu(), first.cpu())
    torch.mtia.set_rng_state_all(states)
    assert torch.equal(torch.rand(5, device="mtia").cpu(), first.cpu())


@pytest.mark.parametrize("device_type", ["mtia", None])
def test_fork_rng_restores_the_states(device_type: str | None) -> None:
    host, there = torch.get_rng_state(), torch.mtia.get_rng_state()
    with torch.random.fork_rng(device_type=device_type):
        torch.manual_seed(1)
        torch.rand(3, device="mtia")
        assert not torch.equal(torch.mtia.get_rng_state(), there)
    assert torch.equal(torch.mtia.get_rng_state(), there)
    assert torch.equal(torch.get_rng_state(), host)


def test_a_seed_given_before_the_first_use_holds(run_script: RunScript) -> None:
    finished = run_script(
        """
        import torch
        torch.mtia.manual_seed(21)
        torch.mtia.manual_seed_all(22)
        assert not torch.mtia.is_initialized()
        first = torch.rand(5, device="mtia")
        assert torch.mtia.initial_seed() == 22
        torch.mtia.manual_seed(22)
        assert torch.equal(torch.rand(5, device="mtia").cpu(), first.cpu())
        """
    )
    finished.output()


def test_devices_have_generators_of_their_own(run_script: RunScript) -> None:
    finished = run_script(
        """
        import torch
        torch.mtia.manual_seed_all(5)
        a, b = (torch.rand(5, device=f"mtia:{i}").cpu() for i in range(2))
        assert torch.equal(a, b)
        with torch.mtia.device(1):
            torch.mtia.manual_seed(6)
        assert [g.initial_seed() for g in torch.mtia.default_generators] == [5, 6]
        assert torch.Generator("mtia:1").device.index == 1
        try:
            torch.rand(2, device="mtia:0", generator=torch.Generator("mtia:1"))
        except RuntimeError as error:
            print(error)
        """,
        TORCH_MTIA_DEVICES="2",
    )
    assert finished.output()
