"""How the choices for an operator are measured where other processes use the processor too."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from torch._inductor import autotune_process, select_algorithm
from torch._inductor.utils import fresh_cache
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from tests.compiled import generated
from torch_mtia.inductor import benchmark
from torch_mtia.upstream_gates import autotuning

SLICE = 5.8
"""Milliseconds that a kernel takes whose threads get the cores one after the other."""


@pytest.mark.parametrize(
    ("samples", "shortest"),
    [
        ([8.0, 8.1, 12.0, 0.3, 8.0, 0.3, 0.31, 9.0], 0.3),  # the scheduler's slices, and now and then the kernel
        ([5.0, 5.1, 5.2], 5.0),
        ([9.0, 4.0], 4.0),  # never confirmed
    ],
)
def test_the_shortest_time_is_believed_once_it_was_seen_several_times(
    samples: list[float], shortest: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[float] = []

    def take(_call: object) -> float:
        taken.append(samples[len(taken)] if len(taken) < len(samples) else max(samples))
        return taken[-1]

    monkeypatch.setattr(benchmark, "_time", take)
    monkeypatch.setattr(benchmark, "_warm_up", lambda *_: None)
    assert benchmark.benchmark(None, lambda: None) == shortest
    confirmed = sum(sample <= shortest * benchmark.SAME for sample in taken) >= benchmark.CONFIRMATIONS
    assert confirmed or sum(taken) >= benchmark.MAX_DOUBT
    assert sum(taken) >= benchmark.MAX_MILLISECONDS


@pytest.mark.parametrize(
    ("template", "winner"), [(0.97, "mm"), (0.90, "triton_mm"), (1.2, "mm")], ids=["noise", "gain", "loss"]
)
def test_a_template_wins_only_by_more_than_noise(template: float, winner: str) -> None:
    timings = {"triton_mm": template, "mm": 1.0}
    compared = autotuning.with_operators_where_little_is_gained(timings, lambda choice: choice == "mm")
    assert min(compared, key=lambda choice: compared[choice]) == winner


def test_close_choices_are_measured_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[str] = []

    def measure(_cls: object, choice: Any, _arguments: object) -> float:
        measured.append(choice.name)
        return 1.0 if choice.name == "mm" else 1.1

    cache = select_algorithm.AlgorithmSelectorCache
    monkeypatch.setattr(cache, "benchmark_choice", classmethod(measure))
    a, b = torch.randn(72, 104).to("mtia"), torch.randn(104, 56).to("mtia")
    with fresh_cache():
        result, code = generated(torch.mm, a, b, options={"max_autotune": True})
    torch.testing.assert_close(result, a @ b, rtol=1e-3, atol=1e-3)
    assert "extern_kernels.mm(" in code
    assert {measured.count(name) for name in measured} == {1 + autotuning.TURNS}
    assert len(set(measured)) > 1


def test_samples_whose_threads_waited_for_a_core_confirm_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[float] = []
    samples = iter([*[SLICE] * 20, *[0.3] * 100])
    clock = SimpleNamespace(waited=0.0)

    def take(_call: object) -> float:
        taken.append(next(samples))
        clock.waited += taken[-1] - 0.3
        return taken[-1]

    monkeypatch.setattr(benchmark, "_time", take)
    monkeypatch.setattr(benchmark, "_waited", lambda: {"1": clock.waited})
    monkeypatch.setattr(benchmark, "_warm_up", lambda *_: None)
    assert benchmark.benchmark(None, lambda: None) == 0.3


def test_a_thread_that_ends_while_threads_are_asked_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = Path("/proc/self/task/0")
    tasks = [*Path("/proc/self/task").iterdir(), ended]
    assert not ended.exists()
    monkeypatch.setattr(Path, "iterdir", lambda _: iter(tasks))
    assert benchmark._waited().keys() <= {task.name for task in tasks} - {ended.name}


def test_long_samples_confirm_each_other_where_nobody_waited(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[float] = []

    def take(_call: object) -> float:
        taken.append(SLICE)
        return SLICE

    monkeypatch.setattr(benchmark, "_time", take)
    monkeypatch.setattr(benchmark, "_waited", lambda: {"1": 0.0})
    monkeypatch.setattr(benchmark, "_warm_up", lambda *_: None)
    assert benchmark.benchmark(None, lambda: None) == SLICE
    assert sum(taken) < 2 * benchmark.MAX_MILLISECONDS


def test_what_the_kernel_says_of_waiting_threads_grows() -> None:
    before = benchmark._waited()
    torch.ones(1 << 20, device="mtia").sum().item()
    assert all(waited >= 0 for waited in before.values())
    assert benchmark._waited_since(before) >= 0


def test_threads_that_end_take_nothing_from_what_the_others_waited(monkeypatch: pytest.MonkeyPatch) -> None:
    before = {"1": 5.0, "2": 9.0}
    monkeypatch.setattr(benchmark, "_waited", lambda: {"1": 7.5, "3": 1.0})
    assert benchmark._waited_since(before) == 3.5


def test_what_is_close_is_measured_again_and_operators_are_kept_unless_much_is_gained() -> None:
    rounds = iter([{"mm": 1.0, "close": 1.2, "far": 9.0}, *[{"mm": 1.0, "close": 0.97}] * autotuning.TURNS])
    asked: list[list[str]] = []

    def measure(choices: list[str]) -> dict[str, float]:
        asked.append(choices)
        return next(rounds)

    times = autotuning.compared_in_turns(measure(["mm", "close", "far"]), measure, lambda choice: choice == "mm")
    assert asked[1:] == [["mm", "close"]] * autotuning.TURNS
    assert min(times, key=lambda choice: times[choice]) == "mm"
    assert times == {"mm": 1.0, "close": 1.0, "far": 9.0}


def times_of(options: dict[str, Any], *shapes: tuple[int, int]) -> tuple[list[list[Any]], str]:
    """What another process is asked to measure in each round, where it finds every choice 3 % quicker than the operator
    here, and the code."""
    rounds: list[list[Any]] = []

    def measure(choices: list[Any]) -> dict[Any, float]:
        rounds.append(choices)
        return dict.fromkeys(choices, 0.97)

    of_operators = mock.patch.object(select_algorithm.AlgorithmSelectorCache, "benchmark_choice", return_value=1.0)
    with mock.patch.object(autotune_process, "benchmark_in_sub_process", measure), of_operators, fresh_cache():
        _, code = generated(torch.mm, *(torch.randn(shape).to("mtia") for shape in shapes), options=options)
    return rounds, code


def test_so_they_are_in_another_process() -> None:
    rounds, code = times_of({"max_autotune": True, "autotune_in_subproc": True}, (72, 120), (120, 88))
    assert len(rounds) == 1 + autotuning.TURNS_ELSEWHERE
    assert "extern_kernels.mm(" in code


@pytest.mark.wide
def test_attention_with_a_mask_is_measured_in_this_process() -> None:
    query, key, value = (torch.randn(1, 2, 128, 16).to("mtia") for _ in range(3))
    mask = create_block_mask(lambda _b, _h, q, k: q >= k, None, None, 128, 128, device="mtia")
    options: dict[str, Any] = {"max_autotune": True, "autotune_in_subproc": True}
    rounds = mock.Mock(side_effect=lambda choices: dict.fromkeys(choices, 1.0))
    with mock.patch.object(autotune_process, "benchmark_in_sub_process", rounds), fresh_cache():
        result = torch.compile(flex_attention, options=options)(query, key, value, block_mask=mask)
    expected = torch.nn.functional.scaled_dot_product_attention(query.cpu(), key.cpu(), value.cpu(), is_causal=True)
    torch.testing.assert_close(result.cpu(), expected, rtol=1e-4, atol=1e-4)
    rounds.assert_not_called()


def test_what_fails_within_a_capture_is_not_remembered() -> None:
    x, w = (torch.randn(48, 48).to("mtia") for _ in range(2))
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: torch.relu(x @ w) * 2, options={"max_autotune": True})
    with fresh_cache():
        with pytest.raises(Exception, match="while a graph is captured"), torch.accelerator.Graph():
            compiled(x)
        torch._dynamo.reset()
        torch.testing.assert_close(compiled(x), torch.relu(x @ w) * 2, rtol=1e-4, atol=1e-4)
