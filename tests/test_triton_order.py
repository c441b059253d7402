"""TORCH_MTIA_ORDER=SEED runs the programs of a launch in a random order: what relies on ascending programs fails."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest
import torch
import triton
import triton.language as tl

from torch_mtia.triton.emit.program import _prime

if TYPE_CHECKING:
    from tests.conftest import RunScript


@triton.jit
def order_of_programs(counter, out):
    number = tl.program_id(0) + tl.num_programs(0) * (tl.program_id(1) + tl.num_programs(1) * tl.program_id(2))
    tl.store(out + number, tl.atomic_add(counter, 1))


@triton.jit
def waits(flag, out):
    if tl.program_id(0) == 1:
        while tl.atomic_add(flag, 0) == 0:
            pass
    tl.store(out + tl.program_id(0), 1)
    tl.atomic_add(flag, 1)


def order(grid: tuple[int, ...], **options: Any) -> list[int]:
    count = math.prod(grid)
    counter, out = torch.zeros(1, dtype=torch.int32).to("mtia"), torch.full((count,), -1, dtype=torch.int32).to("mtia")
    order_of_programs[grid](counter, out, **options)
    return out.tolist()


@pytest.mark.parametrize("grid", [(1,), (7,), (60,), (3, 4, 5), (128, 2)])
@pytest.mark.parametrize("seed", [1, 2, 1 << 40])
def test_every_program_runs_once_in_an_order_of_the_seed(grid: tuple[int, ...], seed: int) -> None:
    found = order(grid, order=seed)
    assert sorted(found) == list(range(math.prod(grid)))


def test_each_seed_has_an_order_of_its_own() -> None:
    orders = [tuple(order((60,), order=seed)) for seed in range(4)]
    assert len(set(orders)) == 4
    assert orders[0] == tuple(range(60))
    assert order((60,), order=1) == list(orders[1])


def test_programs_that_may_wait_for_another_keep_their_order() -> None:
    flag, out = (torch.zeros(2, dtype=torch.int32).to("mtia") for _ in range(2))
    compiled = waits[(2,)](flag, out, order=5)
    assert out.tolist() == [1, 1]
    assert "random order" not in compiled.asm["plan"]


def test_the_factor_is_a_prime() -> None:
    assert [_prime(number) for number in (2047, 3277, 1373653, 1 << 40)] == [2053, 3299, 1373677, 1099511627791]


def test_the_setting_is_the_seed_of_all_kernels(run_script: RunScript, tmp_path: Any) -> None:
    (tmp_path / "launches.py").write_text("""
import torch, triton, triton.language as tl
@triton.jit
def last(out):
    tl.store(out, tl.program_id(0))
out = torch.zeros(1, dtype=torch.int32, device="mtia")
compiled = last[(100,)](out)
print("programs run in a random order, of seed 3" in compiled.asm["plan"])
""")
    assert run_script("import launches", TORCH_MTIA_ORDER="3").output() == "True\n"
    assert run_script("import launches").output() == "False\n"
