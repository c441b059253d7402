"""Random kernels compute what Triton's interpreter computes. See tools/triton_fuzz; `make fuzz` runs more of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import pytest

from tools.triton_fuzz.__main__ import Fuzzer
from torch_mtia.door import device_type

if TYPE_CHECKING:
    from pathlib import Path

PROGRAMS = 300
PER_TEST = 50
# The interpreter accesses memory with an array in reverse; LLVM chooses an instruction that cannot be encoded.
KNOWN = (30139447, 30115050)


@pytest.fixture(scope="module")
def fuzzer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fuzzer]:
    folder: Path = tmp_path_factory.mktemp("fuzz")
    fuzzer = Fuzzer(folder, device_type())
    yield fuzzer
    fuzzer.close()


@pytest.mark.parametrize("first", range(0, PROGRAMS, PER_TEST))
def test_random_kernels_agree_with_the_interpreter(fuzzer: Fuzzer, first: int) -> None:
    check(fuzzer, range(first, first + PER_TEST))


def test_kernels_that_others_get_wrong(fuzzer: Fuzzer) -> None:
    check(fuzzer, KNOWN)


def check(fuzzer: Fuzzer, seeds: Iterable[int]) -> None:
    outcomes = dict(fuzzer.run(seeds))
    wrong = {seed: outcome for seed, outcome in outcomes.items() if outcome.kind != "same"}
    assert not wrong, "\n".join(f"seed {seed}: {outcome.kind}\n{outcome.detail}" for seed, outcome in wrong.items())
