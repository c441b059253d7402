"""Random kernels compute what Triton's interpreter computes. See tools/triton_fuzz; `make fuzz` runs more of them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tools.triton_fuzz.combine import FUNCTIONS
from tools.triton_fuzz.fuzzer import Fuzzer
from tools.triton_fuzz.generate import generate
from tools.triton_fuzz.program import Buffer, Parameter, Program
from tools.triton_fuzz.shrink import shrink
from torch_mtia.backend import device_type

if TYPE_CHECKING:
    from pathlib import Path

PROGRAMS = 300
PER_TEST = 50


@pytest.fixture(scope="module")
def fuzzer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fuzzer]:
    folder: Path = tmp_path_factory.mktemp("fuzz")
    fuzzer = Fuzzer(folder, device_type())
    yield fuzzer
    fuzzer.close()


@pytest.mark.sampled(6)
@pytest.mark.parametrize("first", range(0, PROGRAMS, PER_TEST))
def test_random_kernels_agree_with_the_interpreter(fuzzer: Fuzzer, first: int) -> None:
    check(fuzzer, range(first, first + PER_TEST))


def check(fuzzer: Fuzzer, seeds: Iterable[int]) -> None:
    wrong = {program.seed: outcome for program, outcome in fuzzer.run(seeds) if outcome.kind != "same"}
    assert not wrong, "\n".join(f"seed {seed}: {outcome.kind}\n{outcome.detail}" for seed, outcome in wrong.items())


def test_a_seed_is_always_the_same_program() -> None:
    assert [generate(seed) for seed in range(20)] == [generate(seed) for seed in range(20)]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_are_associative_and_commute_only_if_they_say_so(name: str) -> None:
    function = FUNCTIONS[name]

    class language:
        where = staticmethod(np.where)
        minimum = staticmethod(np.minimum)

    compiled: Callable[..., tuple[int, ...]] = eval(
        f"lambda {function.parameters}: ({function.result},)", {"tl": language}
    )

    def combine(left: tuple[int, ...], right: tuple[int, ...]) -> tuple[int, ...]:
        return compiled(*left, *right)

    numbers = random.Random(0)
    commutes = True
    for _ in range(2000):
        a, b, c = (tuple(numbers.randint(-3, 3) for _ in range(function.operands)) for _ in range(3))
        assert combine(combine(a, b), c) == combine(a, combine(b, c))
        commutes &= combine(a, b) == combine(b, a)
    assert commutes == function.commutes


def program_of(seed: int, *lines: str) -> Program:
    buffer = Buffer("p", "int32", 4, 0, 100)
    return Program(seed, tuple(f"    {line}" for line in lines or ("pass",)), (buffer,), (Parameter("p"),), 1)


# Shrinking ----------------------------------------------------------------------------------------------------------


def test_what_fails_is_shown_without_the_lines_it_does_not_need() -> None:
    program = program_of(
        0, "a = 1", "for i in range(3):", "    b = 2", "    tl.store(p, a)", "while i > 0:", "    i -= 1", "c = 3"
    )

    def fails(candidate: Program) -> bool:
        return {"    a = 1", "store"} <= {*candidate.lines, *("store" for line in candidate.lines if "store" in line)}

    assert shrink(program, fails).lines == ("    a = 1", "    tl.store(p, a)")


def test_a_loop_that_counts_down_is_never_shown_without_its_count() -> None:
    program = program_of(0, "i = 3", "while i > 0:", "    a = 1", "    i -= 1")

    def fails(candidate: Program) -> bool:
        loops = any("while" in line for line in candidate.lines)
        assert not loops or "        i -= 1" in candidate.lines
        return loops

    assert shrink(program, fails).lines == ("    while i > 0:", "        i -= 1")
