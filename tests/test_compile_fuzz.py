"""Random programs compute compiled what they do on the CPU. See tools/compile_fuzz; `make fuzz-compile` runs more."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from tools.compile_fuzz.__main__ import run
from tools.compile_fuzz.comparison import differences, observe
from tools.compile_fuzz.execution import MODES
from tools.compile_fuzz.generate import generate
from tools.compile_fuzz.program import CALLS, Input, Program
from tools.compile_fuzz.shrink import shrink
from torch_mtia.backend import device_type

SEEDS = (2, 9)


def test_random_programs_agree_with_the_cpu() -> None:
    reports = list(run(SEEDS, list(MODES), device_type()))
    wrong = [(task, report) for task, report in reports if report.kind not in ("same", "upstream")]
    assert [(task.seed, task.mode) for task, _ in reports] == [(seed, mode) for seed in SEEDS for mode in MODES]
    assert not wrong, "\n".join(f"{task}: {report.kind}\n{report.program}{report.detail}" for task, report in wrong)


def test_a_seed_is_one_program_with_other_data_in_each_call() -> None:
    program, again = generate(7), generate(7)
    assert program == again
    calls = [program.arguments(call, "cpu") for call in range(CALLS)]
    for first, second in zip(program.arguments(1, "cpu").bases, calls[1].bases, strict=True):
        assert torch.equal(first, second) or first.isnan().any()
    assert any(not torch.equal(calls[0].tensors[0], call.tensors[0]) for call in calls[1:])


def small_program(*lines: str, results: tuple[str, ...], **inputs: torch.dtype) -> Program:
    given = tuple(Input(name, (4,), dtype, 3, order=(0,), padding=(0,)) for name, dtype in inputs.items())
    errors = dict.fromkeys((*inputs, *results), 0.0)
    return Program(0, given, lines, results, errors, training=False, features=())


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ("v0 = a0 + 2", "output 0 (v0): 4 of 4 elements"),
        ("v0 = (a0 + 1).double()", "output 0 (v0): torch.float64"),
        ("v0 = a0.add_(1).clone()", "input a0: 4 of 4 elements"),
        ("v0 = a0.add_(1)", "storages of outputs are shared"),
        ("v0 = (a0 + 1).repeat_interleave(2)[::2]", "output 0 (v0): strides"),
    ],
)
def test_a_wrong_value_type_mutation_or_alias_is_seen(wrong: str, text: str) -> None:
    right = small_program("v0 = a0 + 1", results=("v0",), a0=torch.float32)
    changed = dataclasses.replace(right, lines=(wrong,))
    expected, actual = (observe(each.function(), each.arguments(0, "cpu"), False) for each in (right, changed))
    assert differences(right, expected, expected) == []
    found = differences(right, actual, expected)
    assert any(text in each for each in found), found


def test_a_failing_program_is_shrunk_to_what_fails() -> None:
    program = small_program(
        "v0 = a0 + 1",
        "v1 = a1 * 2",
        "v2 = v0.cumsum(0)",
        "v3 = v2 + v1",
        results=("v3", "v1"),
        a0=torch.float32,
        a1=torch.int64,
    )
    smallest = shrink(program, lambda candidate: "cumsum" in candidate.source)
    assert smallest.lines == ("v2 = a0.cumsum(0)",)
    assert [each.name for each in smallest.inputs] == ["a0"]
