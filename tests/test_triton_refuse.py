"""targets(..., refuse=True): a launch raises what a GPU says to it, and the kernel does not run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
import triton
import triton.language as tl
from triton.runtime.errors import OutOfResources

from torch_mtia.triton import targets

if TYPE_CHECKING:
    from tests.conftest import RunScript


@triton.jit
def product(a, b, c, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    m, n, k = tl.arange(0, M)[:, None], tl.arange(0, N), tl.arange(0, K)
    tl.store(c + m * N + n, tl.dot(tl.load(a + m * K + k), tl.load(b + k[:, None] * N + n)).to(tl.float16))


@triton.autotune([triton.Config({"M": 512}), triton.Config({"M": 32})], key=[])
@triton.jit
def tuned(a, b, c, N: tl.constexpr, K: tl.constexpr, M: tl.constexpr):
    m, n, k = tl.program_id(0) * M + tl.arange(0, M)[:, None], tl.arange(0, N), tl.arange(0, K)
    tl.store(c + m * N + n, tl.dot(tl.load(a + m * K + k), tl.load(b + k[:, None] * N + n)).to(tl.float16))


def launch(m: int, n: int, k: int, **options: Any) -> torch.Tensor:
    a, b = (torch.ones(shape, dtype=torch.float16).to("mtia") for shape in ((m, k), (k, n)))
    c = torch.full((m, n), -1, dtype=torch.float16).to("mtia")
    product[(1,)](a, b, c, m, n, k, **options)
    return c


def test_a_launch_that_is_refused_raises_each_time_and_others_run() -> None:
    with targets("cuda:90", refuse=True) as report:
        assert (launch(32, 32, 32) == 32).all()
        for _ in range(2):
            with pytest.raises(OutOfResources, match=r"cuda:90 refuses product\(M=16, N=16, K=8\): .*K >= 16"):
                launch(16, 16, 8)
    assert [row.status for row in report.rows] == ["compiles", "fails"]
    assert (launch(16, 16, 8) == 8).all()  # after the block


def test_the_words_are_those_of_the_target() -> None:
    with targets("cuda:90", "hip:gfx942", refuse=True):
        with pytest.raises(OutOfResources, match=r"out of resource: shared memory, Required: .*Hardware limit: 232448"):
            launch(512, 64, 512)
        with pytest.raises(OutOfResources, match="num_warps must be a power of 2"):
            launch(64, 64, 64, num_warps=6)
        with pytest.raises(OutOfResources, match=r"hip:gfx942 refuses .*num_ctas > 1 not supported on gfx942"):
            launch(32, 32, 64, num_ctas=2)


def test_a_kernel_that_was_refused_has_not_run() -> None:
    c = torch.full((16, 16), -1, dtype=torch.float16).to("mtia")
    a = torch.ones(16, 8, dtype=torch.float16).to("mtia")
    with targets("cuda:90", refuse=True), pytest.raises(OutOfResources):
        product[(1,)](a, a, c, 16, 16, 8)
    assert (c == -1).all()


def test_autotuning_leaves_out_what_a_target_leaves_out() -> None:
    a, b = (torch.ones(shape, dtype=torch.float16).to("mtia") for shape in ((512, 512), (512, 64)))
    c = torch.empty(512, 64, dtype=torch.float16).to("mtia")
    with targets("cuda:90", refuse=True):
        tuned[lambda chosen: (512 // chosen["M"],)](a, b, c, 64, 512)
    assert tuned.best_config.kwargs == {"M": 32}
    assert (c == 512).all()


def test_what_a_compiler_cannot_answer_stops_no_launch() -> None:
    with targets("cuda:90", refuse=True, timeout=0) as report:
        assert (launch(32, 32, 128) == 128).all()
    assert "did not end" in report.rows[0].message


def test_the_setting_is_for_a_whole_process(run_script: RunScript, tmp_path: Any) -> None:
    (tmp_path / "launch.py").write_text("""
import torch, triton, triton.language as tl
@triton.jit
def product(a):
    m, k = tl.arange(0, 16), tl.arange(0, 8)
    x = tl.load(a + m[:, None] * 8 + k)
    tl.store(a + m[:, None] * 16 + m, tl.dot(x, tl.trans(x)))
product[(1,)](torch.zeros(256, device="mtia"))
print("ran")
""")
    finished = run_script("import launch", TORCH_MTIA_TARGETS="cuda:90", TORCH_MTIA_REFUSE="1")
    assert "RefusedByTarget: cuda:90 refuses product" in finished.stderr
    assert run_script("import launch", TORCH_MTIA_TARGETS="cuda:90").output() == "ran\n"
