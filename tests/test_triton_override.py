"""The text of a plan is read back: what somebody has changed in it is in the kernel's code, or is an error."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from test_triton_plan import matmul, softmax
from triton_language import plan_of

from tools.triton_fuzz.generate import generate
from tools.triton_fuzz.kernels import _load_kernel
from torch_mtia.triton.compiler import MTIABackend, PlanStage
from torch_mtia.triton.emit.program import emit_program
from torch_mtia.triton.plan.override import PlanError, changed_plan
from torch_mtia.triton.plan.text import plan_text

pytestmark = pytest.mark.unwatched("kernels that are watched have other plans")
ARCH = "x86-64-v4"


@triton.jit
def scaled(out, x, scale, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n
    tl.store(out + i, tl.load(x + i, mask=mask) / scale, mask=mask)


class _PlannedError(Exception):
    """Stops a compilation: the plan is made."""


def planned(kernel: Any, *arguments: Any, **options: Any) -> PlanStage:
    """The plan of a kernel, which is not compiled any further."""
    make_plan, stages = MTIABackend.make_plan, list[PlanStage]()

    def stop(*given: Any) -> PlanStage:
        stages.append(make_plan(*given))
        raise _PlannedError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MTIABackend, "make_plan", staticmethod(stop))
        with pytest.raises(_PlannedError):
            kernel.warmup(*arguments, grid=(1,), **options)
    return stages[0]


def plan_of_scaled() -> PlanStage:
    return planned(scaled, torch.float32, torch.float32, 2.0, 100, BLOCK=1024, arch=ARCH)


@pytest.mark.parametrize("first", range(0, 60, 10))
def test_the_text_of_a_plan_is_read_back_as_it_was(first: int) -> None:
    for seed in range(first, first + 10):
        program = generate(seed)
        by_position, by_name = program.arguments(
            {name: tensor.to("mtia") for name, tensor in program.tensors().items()}
        )
        stage = planned(_load_kernel(f"<seed {seed}>", program.source), *by_position, **by_name)
        assert plan_text(changed_plan(stage.plan, stage.text)) == stage.text


def test_there_is_no_gather_in_a_softmax() -> None:
    assert "gather" not in plan_of(softmax, torch.float32, torch.float32, 100, 100, BLOCK=1024)


@pytest.mark.parametrize(
    ("pattern", "by"),
    [
        (r", prefetches 2048 bytes ahead", ""),
        (r"prefetches 2048", "prefetches 512"),
        (r"(loads \S+): vector.*", r"\1: gather"),
        (r"(stores \S+): vector.*", r"\1: scatter"),
        (r"2 strips in a round", "4 strips in a round"),
        (r", 2 strips in a round", ""),
        (r": reciprocal", ": exact"),
        (r"\n.*ends along dimension 0.*", ""),
        (r", past the caches", ""),
        (r"\n.*past the caches if.*\n.*and not.*", ""),
        (r"about \d+ ns", "about 123 ns"),
    ],
)
def test_what_is_changed_is_in_the_code(device: torch.device, tmp_path: Path, pattern: str, by: str) -> None:
    x, out, scale, n = torch.randn(1 << 12, device=device), torch.zeros(1 << 12, device=device), 3.0, 4000
    before = scaled[(4,)](out, x, scale, n, BLOCK=1024, arch=ARCH)
    text, count = re.subn(pattern, by, before.asm["plan"])
    assert count
    file = tmp_path / "changed.plan"
    file.write_text(text)
    out.zero_()
    after = scaled[(4,)](out, x, scale, n, BLOCK=1024, arch=ARCH, ir_override=str(file))
    assert after.asm["plan"] == text
    assert after.asm["llir"] != before.asm["llir"]
    assert torch.equal(out, torch.where(torch.arange(1 << 12, device=device) < n, x / scale, 0.0))


def test_a_file_that_has_changed_is_compiled_anew(tmp_path: Path) -> None:
    file, text = tmp_path / "changed.plan", plan_of_scaled().text
    for distance in ("512", "1024"):
        file.write_text(text.replace("prefetches 2048", f"prefetches {distance}"))
        scaled.device_caches.clear()
        options = {"BLOCK": 1024, "arch": ARCH, "ir_override": str(file)}
        assert f"prefetches {distance}" in plan_of(scaled, torch.float32, torch.float32, 2.0, 100, **options)


@pytest.mark.parametrize(
    ("pattern", "by", "message"),
    [
        (
            r"(loads \S+): vector",
            r"\1: vectors",
            r"'loads %5: vectors, .*': it is vector, and",
        ),
        (
            r"(loads \S+): vector",
            r"\1: wide 8",
            r"in the place of 'loads .*only kind, ahead, nontemporal can be changed",
        ),
        (r": reciprocal", r": vector", r"it is reciprocal, and can be exact"),
        (r"2 strips in", "3 strips in", r"1024 elements are no whole number of rounds of 3 strips"),
        (r"2 strips in", "0 strips in", r"1024 elements are no whole number of rounds of 0 strips"),
        (r"16 at a time", "8 at a time", r"is in the place of 'over 1024, 16 at a time.*only unroll can be changed"),
        (
            r"(stores %\S+): vector.*",
            r"\1: vector, prefetches 64 bytes ahead, past the caches",
            r"only loads of neighbours prefetch",
        ),
        (r"(loads %\S+): vector.*", r"\1: gather, prefetches 64 bytes ahead", r"only loads of neighbours prefetch"),
        (r"(loads %\S+): vector.*", r"\1: scatter", r"a load can be a gather, a store a scatter"),
        (r"\n.*stores %\S+: .*", "", r"is in the place of 'stores"),
        (r"$", "\n  9 return", r"'9 return' is not in the plan that the compiler makes"),
        (r"\n.*past the caches if.*", "", r"'and not\(.*\)' is in the place of"),
    ],
)
def test_what_cannot_be_changed_is_an_error(pattern: str, by: str, message: str) -> None:
    stage = plan_of_scaled()
    text = re.sub(pattern, by, stage.text.rstrip(), count=1)
    assert text != stage.text.rstrip()
    with pytest.raises(PlanError, match=rf"^line \d+ of the plan: .*{message}"):
        changed_plan(stage.plan, text)


def test_a_gather_cannot_become_a_vector() -> None:
    @triton.jit
    def gathered(out, x, at, N: tl.constexpr):
        i = tl.arange(0, N)
        tl.store(out + i, tl.load(x + tl.load(at + i)))

    stage = planned(gathered, torch.float32, torch.float32, torch.int32, N=64, arch=ARCH)
    with pytest.raises(PlanError, match=r"it is gather, and can be nothing else"):
        changed_plan(stage.plan, stage.text.replace(": gather", ": vector"))


def test_the_mask_of_a_store_is_needed_where_a_loop_does_not_end() -> None:
    @triton.jit
    def block(out, m, n, N: tl.constexpr):
        i, j = tl.arange(0, N)[:, None], tl.arange(0, N)[None, :]
        tl.store(out + i * n + j, i + j, mask=(i < m) & (j < n))

    stage = planned(block, torch.int32, 60, 60, N=64, arch=ARCH)
    assert "where no loop ends early" in stage.text
    without_end = re.sub(r"\n.*ends along dimension 0.*", "", stage.text)
    with pytest.raises(PlanError, match=r"known from where the loops end"):
        changed_plan(stage.plan, without_end)
    changed_plan(stage.plan, re.sub(r"\n.*where no loop ends early", "", without_end))


def test_rounds_of_products_are_whole() -> None:
    stage = planned(matmul, torch.float32, torch.float32, torch.float32, 128, M=64, N=64, BLOCK=64, arch=ARCH)
    changed = changed_plan(stage.plan, stage.text.replace("4 in a round", "2 in a round"))
    assert plan_text(changed) == stage.text.replace("4 in a round", "2 in a round")
    with pytest.raises(PlanError, match=r"are no whole number of rounds of 5"):
        changed_plan(stage.plan, stage.text.replace("4 in a round", "5 in a round"))


def test_checks_of_divisors_and_divisions_of_strips_are_in_the_plan_and_stay() -> None:
    @triton.jit
    def rows(out, x, y, n, BLOCK: tl.constexpr):
        i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(out + i, tl.load(x + i // n) + tl.load(x + i) // tl.load(y + i) + tl.load(x + i) % 3)

    stage = planned(rows, torch.int32, torch.int32, torch.int32, 64, BLOCK=64, arch=ARCH)
    checks = re.findall(r"divides to \S+, checked for (.*)", stage.text)
    kinds = re.findall(r"divides to \S+: (.*)", stage.text)
    assert checks == ["0 and -1", "0 and -1"]  # by a constant, nothing can go wrong
    assert sorted(kinds) == ["scalar", "vector"]
    for kind in ("vector", "gather"):
        changed = re.sub(r"(divides to \S+): scalar", rf"\1: {kind}", stage.text)
        with pytest.raises(PlanError, match=r"it is scalar, and can be nothing else"):
            changed_plan(stage.plan, changed)
    with pytest.raises(PlanError, match="checked for 0"):
        changed_plan(stage.plan, stage.text.replace("checked for 0 and -1", "checked for 0"))


@pytest.mark.parametrize(
    ("pattern", "by"),
    [
        (r"(loads \S+: strided), prefetches 4 rows ahead", r"\1"),
        (r"(loads \S+: strided), prefetches 4 rows ahead", r"\1, prefetches 8 rows ahead"),
        (r"\n.*prefetches what follows.*", ""),
        (r"(rows ahead): 16 of", r"\1: 2 of"),
    ],
)
def test_what_a_product_fetches_can_be_changed(pattern: str, by: str) -> None:
    stage = planned(matmul, torch.float32, torch.float32, torch.float32, 128, M=32, N=64, BLOCK=32, arch=ARCH)
    text, count = re.subn(pattern, by, stage.text)
    assert count
    changed = changed_plan(stage.plan, text)
    assert plan_text(changed) == text
    assert emit_program(changed, ARCH, False).text != emit_program(stage.plan, ARCH, False).text
