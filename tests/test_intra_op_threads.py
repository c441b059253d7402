"""Where the threads run that help an executor: anywhere but on its core. The program's own may run where they could."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
import torch

if TYPE_CHECKING:
    from tests.conftest import RunScript

CORES = os.sched_getaffinity(0)
PRODUCTS = """
import os, torch
torch.set_num_threads(2)
x = torch.arange(512 * 512, dtype=torch.float32).view(512, 512) % 7
on_device = x.to("mtia")
for _ in range(20):
    product = on_device @ on_device
assert torch.equal(product.cpu(), x @ x)
print(sorted(os.sched_getaffinity(0)))
for thread in map(int, os.listdir("/proc/self/task")):
    with open(f"/proc/self/task/{thread}/comm") as name:
        if name.read().startswith("mtia:"):
            print(sorted(os.sched_getaffinity(thread)))
"""


@pytest.mark.in_tree("the device's threads are called mtia")
@pytest.mark.skipif(len(CORES) < 2, reason="one core is everybody's")
def test_helpers_may_run_on_any_core_but_that_of_their_executor(run_script: RunScript) -> None:
    program, *threads = run_script(PRODUCTS).output().splitlines()
    assert program == str(sorted(CORES))
    lengths = sorted(len(cores.split(",")) for cores in threads)
    assert lengths == [len(CORES) - 1, len(CORES)]


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("OMP_PROC_BIND", "true"),
        ("OMP_THREAD_LIMIT", "1"),
        ("OMP_DYNAMIC", "true"),
        ("OMP_MAX_ACTIVE_LEVELS", "0"),
    ],
)
def test_openmp_may_be_told_otherwise(
    run_script: RunScript, monkeypatch: pytest.MonkeyPatch, setting: str, value: str
) -> None:
    """oneDNN leaves parts of a product out where a region has fewer threads than it was promised."""
    monkeypatch.setenv(setting, value)
    run_script(PRODUCTS).output()


def test_a_process_may_have_one_core(run_script: RunScript) -> None:
    core = min(CORES)
    finished = run_script(f"import os; os.sched_setaffinity(0, [{core}])\n{PRODUCTS}")
    assert set(finished.output().splitlines()) == {f"[{core}]"}


def test_the_number_of_threads_may_change_between_items() -> None:
    before = torch.get_num_threads()
    x = torch.arange(512 * 512, dtype=torch.float32).view(512, 512) % 7
    on_device, expected = x.to("mtia"), x @ x
    try:
        for count in (2, 5, 3, 1, 16, 2):
            torch.set_num_threads(count)
            assert torch.equal((on_device @ on_device).cpu(), expected)
    finally:
        torch.set_num_threads(before)


SMALL_LOOPS = '''
import os, torch

torch.set_num_threads(3)
dtypes = (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.complex64)
unary = """abs neg sign exp exp2 expm1 log log2 log10 log1p sqrt rsqrt sin cos tan asin acos atan sinh cosh tanh asinh
    acosh atanh erf erfc erfinv lgamma digamma sigmoid reciprocal floor ceil round trunc frac sinc i0 bitwise_not
    logical_not isnan sum mean prod amax amin argmax any all std var norm"""
binary = """add sub mul div remainder fmod pow atan2 maximum minimum hypot copysign nextafter logaddexp logaddexp2 xlogy
    eq lt bitwise_and bitwise_or gcd lcm heaviside igamma"""

def of_the_program():
    comms = []
    for thread in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{thread}/comm") as comm:
            comms.append(comm.read())
    return sum(not comm.startswith("mtia:") for comm in comms)

def run(numel):
    ran = 0
    for dtype in dtypes:
        x = torch.arange(1, numel + 1, device="mtia").to(dtype)
        for names, arguments in ((unary, (x,)), (binary, (x, x))):
            for name in names.split():
                try:
                    getattr(torch, name)(*arguments)
                    ran += 1
                except (RuntimeError, TypeError):
                    pass  # not of this dtype
        x.clone().fill_(2), x.to(torch.float32), torch.where(x == x, x, x)
        if dtype.is_floating_point:
            x.uniform_(), x.normal_()
    assert ran > 150, ran

run(16)
torch.mtia.synchronize()
before = of_the_program()
for numel in (31, 32, 5000):
    run(numel)
    torch.mtia.synchronize()
    assert of_the_program() == before, (numel, of_the_program(), before)
'''


def test_small_loops_start_no_threads_of_openmp(run_script: RunScript) -> None:
    """Those of fewer than 32 elements run without a number of threads of their own."""
    run_script(SMALL_LOOPS, OMP_NUM_THREADS="3").output()
