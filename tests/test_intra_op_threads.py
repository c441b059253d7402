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
