"""Random interleavings of streams, events, memory and graphs give what the CPU gives. See tools/runtime_fuzz;
`make fuzz-runtime` runs more of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tools.hunts.worker import Run, Worker
from tools.runtime_fuzz import order
from tools.runtime_fuzz.__main__ import text_of
from tools.runtime_fuzz.fuzzer import Fuzzer
from tools.runtime_fuzz.profiles import BLOCK, PROFILES, profile_of
from tools.runtime_fuzz.program import Program

pytestmark = [
    pytest.mark.in_tree("programs run in processes of their own, whose devices are mtia"),
    pytest.mark.unwatched("some race on purpose, and some take numpy() of what a copy writes, which counts as a read"),
]

PER_PROFILE = 25


@pytest.fixture(scope="module")
def fuzzer() -> Iterator[Fuzzer]:
    fuzzer = Fuzzer()
    yield fuzzer
    fuzzer.close()


@pytest.mark.sampled(4)
@pytest.mark.parametrize("number", range(len(PROFILES)), ids=[profile.name for profile in PROFILES])
def test_random_interleavings_agree_with_the_cpu(fuzzer: Fuzzer, number: int) -> None:
    for seed in range(number * BLOCK, number * BLOCK + PER_PROFILE):
        program = profile_of(seed).program(seed)
        outcome = fuzzer.run(program)
        assert not outcome.failed, f"seed {seed}: {outcome}\n{text_of(program)}"


def without_order() -> Run[Program, str]:
    """In the process that runs programs."""
    from tools.runtime_fuzz.execute import run

    order._Ordering._order = lambda *_: None  # type: ignore[method-assign]
    return run


def test_programs_without_their_synchronization_differ() -> None:
    profile = PROFILES[0]
    worker = Worker[Program, str](without_order, profile.environment, limit=60)
    results = [worker.run(profile.program(seed)) for seed in range(20)]
    worker.close()
    assert any(isinstance(result, str) and result for result in results)
