"""What Inductor measures in other processes, and what becomes of choices that fail, hang or crash there."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.nn.functional as F
from torch._inductor import autotune_process
from torch._inductor import config as inductor_config
from torch._inductor import utils as inductor_utils
from torch._inductor.autotune_process import AsyncAutotuner, AutotuneProcessPool, TritonBenchmarkRequest
from torch._inductor.utils import fresh_cache
from torch.nn.attention.flex_attention import flex_attention

from tests import autotuned
from tests.autotuned import assert_close, on_device
from tests.compiled import generated
from torch_mtia.upstream_gates import autotuning

if TYPE_CHECKING:
    from tests.conftest import RunScript

Tensor = torch.Tensor
choices, times, _without_caches = autotuned.choices, autotuned.times, autotuned.without_caches


def integers(*shape: int) -> Tensor:
    return torch.randint(-128, 128, shape, dtype=torch.int8).to("mtia")


def scaled_product(a: Tensor, b: Tensor, scale: Tensor) -> Tensor:
    return torch._scaled_mm(a, b.t(), scale, scale, out_dtype=torch.bfloat16)


def eight_bits(*shape: int) -> Tensor:
    return on_device(*shape).to(torch.float8_e4m3fn)


REQUESTS: dict[str, tuple[Callable[..., Tensor], Callable[[], tuple[Tensor, ...]]]] = {
    "mm": (torch.mm, lambda: (on_device(72, 64), on_device(64, 136))),
    "addmm": (torch.addmm, lambda: (on_device(136), on_device(72, 64), on_device(64, 136))),
    "bmm": (torch.bmm, lambda: (on_device(3, 72, 64), on_device(3, 64, 136))),
    "baddbmm": (torch.baddbmm, lambda: (on_device(3, 72, 136), on_device(3, 72, 64), on_device(3, 64, 136))),
    "_int_mm": (torch._int_mm, lambda: (integers(72, 64), integers(64, 136))),
    "_scaled_mm": (scaled_product, lambda: (eight_bits(72, 64), eight_bits(136, 64), torch.rand(1).to("mtia"))),
    "mm_plus_mm": (
        lambda a, b, c, d: a @ b + c @ d,
        lambda: (on_device(72, 64), on_device(64, 136), on_device(72, 64), on_device(64, 136)),
    ),
    "convolution2d": (F.conv2d, lambda: (on_device(1, 8, 10, 10), on_device(16, 8, 3, 3))),
    "a convolution of one pixel": (F.conv2d, lambda: (on_device(1, 8, 10, 10), on_device(16, 8, 1, 1))),
    "a long sum": (torch.mm, lambda: (on_device(24, 4096), on_device(4096, 24))),
}
TEMPLATES = {
    "mm_plus_mm": "triton_mm_plus_mm",
    "convolution2d": "triton_convolution2d",
    "a long sum": "decompose_k_mm",
}
ELSEWHERE: dict[str, Any] = {"max_autotune": True, "autotune_in_subproc": True, "benchmark_epilogue_fusion": False}
PIPELINE: dict[str, Any] = {
    "max_autotune": True,
    "pipeline_max_autotune_gemm": True,
    "benchmark_epilogue_fusion": False,
}


@pytest.fixture
def pipeline(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """What the pipeline measures: futures of times, by names of choices and what their operands are."""
    monkeypatch.setattr(AutotuneProcessPool, "_shutdown_for_inactivity", False)
    monkeypatch.setattr(AsyncAutotuner, "choice_hash_to_future", {})
    yield AsyncAutotuner.choice_hash_to_future
    torch._dynamo.reset()


def forget_divisions() -> None:
    """Of long sums: upstream remembers what it said of a length."""
    for name in ("use_decompose_k_choice", "get_k_splits"):
        getattr(getattr(inductor_utils, name, None), "cache_clear", lambda: None)()


@pytest.fixture
def few_divisions() -> Iterator[None]:
    forget_divisions()
    with inductor_config.patch({"triton.num_decompose_k_splits": 2}):
        yield
    forget_divisions()


@pytest.fixture
def measured_elsewhere(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the choices that the other process is asked to measure."""
    names: list[str] = []
    benchmark_in_sub_process = autotune_process.benchmark_in_sub_process

    def seen(choices: Any) -> Any:
        names.extend(choice.name for choice in choices)
        return benchmark_in_sub_process(choices)

    monkeypatch.setattr(autotune_process, "benchmark_in_sub_process", seen)
    return names


@pytest.mark.sampled(5)
@pytest.mark.parametrize("what", REQUESTS)
@pytest.mark.usefixtures("few_divisions")
def test_every_request_is_measured_in_a_process_of_its_own(
    what: str, times: dict[str, float], measured_elsewhere: list[str]
) -> None:
    operator, operands_of = REQUESTS[what]
    operands = operands_of()
    with fresh_cache():
        result, _ = generated(lambda *values: F.relu(operator(*values)), *operands, options=ELSEWHERE)
    assert_close(result, F.relu(operator(*operands)), 1e-2)
    templates = {name for name in times if name.startswith(TEMPLATES.get(what, "triton"))}
    assert templates
    assert len(times) > len(templates)
    assert all(0 < time < math.inf for time in times.values())
    # What consists of operators is measured beside them, in this process.
    assert set(measured_elsewhere) == (set() if what == "a long sum" else templates)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("what", REQUESTS)
@pytest.mark.usefixtures("few_divisions")
def test_every_request_is_measured_in_the_pipeline(what: str, pipeline: dict[str, Any]) -> None:
    operator, operands_of = REQUESTS[what]
    operands = operands_of()
    with fresh_cache():
        result, _ = generated(lambda *values: F.relu(operator(*values)), *operands, options=PIPELINE)
    assert_close(result, F.relu(operator(*operands)), 1e-2)
    prefix = TEMPLATES.get(what, "triton")
    assert 0 < sum(prefix in choice for choice in pipeline) < len(pipeline)
    assert all(0 < future.result() < math.inf for future in pipeline.values())


def test_flex_attention_is_chosen_while_the_pipeline_is_on(pipeline: dict[str, Any], choices: list[str]) -> None:
    """Before lowering goes on: in this process, which has the blocks of the mask."""
    query, key, value = (on_device(1, 1, 128, 16) for _ in range(3))
    with fresh_cache():
        result, _ = generated(flex_attention, query, key, value, options=PIPELINE)
    assert_close(result, F.scaled_dot_product_attention(query, key, value), 1e-2)
    assert len(choices) > 1
    assert not pipeline


def broken_elsewhere(monkeypatch: pytest.MonkeyPatch, function: Callable[..., Any], *arguments: Any) -> None:
    """Templates are, in the other process, what the function returns there."""
    monkeypatch.setattr(TritonBenchmarkRequest, "__reduce__", lambda _: (function, arguments))


@pytest.mark.filterwarnings("ignore:Failed to benchmark choice")
@pytest.mark.parametrize("options", [ELSEWHERE, PIPELINE], ids=["a process of its own", "pipeline"])
def test_choices_that_fail_elsewhere_lose(
    options: dict[str, Any], times: dict[str, float], pipeline: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def elsewhere(request: object) -> dict[str, object]:
        return {**vars(request), "module_path": "/there/is/no/such/module.py"}

    monkeypatch.setattr(TritonBenchmarkRequest, "__getstate__", elsewhere)
    a, b = on_device(136, 104), on_device(104, 72)
    with fresh_cache():
        result, code = generated(torch.mm, a, b, options=options)
    assert_close(result, a @ b)
    of_templates = [future.result() for name, future in pipeline.items() if "triton_mm" in name]
    of_templates += [time for name, time in times.items() if name.startswith("triton_mm_")]
    assert of_templates
    assert set(of_templates) == {math.inf}
    assert "extern_kernels.mm(" in code


def only_the_operator_is_left(times: dict[str, float]) -> None:
    a, b = on_device(16, 16), on_device(16, 16)
    with fresh_cache():
        result, code = generated(torch.mm, a, b, options=ELSEWHERE)
    assert_close(result, a @ b)
    assert 0 < times.pop("mm") < math.inf
    assert times
    assert set(times.values()) == {math.inf}
    assert "extern_kernels.mm(" in code


def test_choices_that_hang_in_a_process_of_their_own_lose(
    times: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    broken_elsewhere(monkeypatch, autotune_process._TestBenchmarkRequest, 1e-3, None, 600.0)
    limit = {"max_autotune_subproc_result_timeout_seconds": 0.5}
    with inductor_config.patch(limit), pytest.warns(UserWarning, match="Timed out benchmarking choice"):
        only_the_operator_is_left(times)


def test_choices_that_end_a_process_of_their_own_lose(times: dict[str, float], monkeypatch: pytest.MonkeyPatch) -> None:
    broken_elsewhere(monkeypatch, os._exit, 1)
    with pytest.warns(UserWarning, match="Failed to benchmark choice"):
        only_the_operator_is_left(times)


def test_choices_that_end_the_pipelines_process_lose(pipeline: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    broken_elsewhere(monkeypatch, os._exit, 1)
    a, b = on_device(16, 16), on_device(16, 16)
    with fresh_cache(), pytest.warns(UserWarning, match="'triton_.*' ended the process that measured it"):
        result, code = generated(torch.mm, a, b, options=PIPELINE)
    assert_close(result, a @ b)
    times = {name.startswith("mm"): future.result() for name, future in pipeline.items()}
    assert 0 < times[True] < math.inf
    assert times[False] == math.inf
    assert "extern_kernels.mm(" in code


@pytest.mark.usefixtures("pipeline")
def test_choices_that_hang_in_the_pipeline_lose() -> None:
    def time_of(limit: float, *request: Any) -> float:
        measured = autotune_process._TestBenchmarkRequest(*request)
        measured.kernel_name = "mm"
        with inductor_config.patch(pipeline_max_autotune_gemm=True, max_autotune_subproc_result_timeout_seconds=limit):
            return autotuning._Measurement(measured).result()

    with pytest.warns(UserWarning, match="'mm' took more than 0.5 seconds"):
        assert time_of(0.5, 1.0, None, 600.0) == math.inf
    assert time_of(600.0, 7.0) == 7.0
    AutotuneProcessPool.shutdown_instance()


def test_the_pipelines_process_ends_when_it_has_nothing_to_do(
    pipeline: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    AutotuneProcessPool.shutdown_instance()
    monkeypatch.setattr(autotune_process, "AUTOTUNE_POOL_INACTIVITY_TIMEOUT", 1)
    with inductor_config.patch(pipeline_max_autotune_gemm=True):
        instance = AutotuneProcessPool.get_instance()
        pool = instance.pool
        done = pool.submit(torch.mtia.synchronize)
        (process,) = pool._processes.values()
        manager = pool._executor_manager_thread
        done.result()
        instance._record_activity()
        manager.join()  # which joins the process: of two threads that do, one may find no exit code
    assert process.exitcode == 0
    a, b = on_device(16, 16), on_device(16, 16)
    with fresh_cache():  # what is compiled later is measured in this process
        result, _ = generated(torch.mm, a, b, options=PIPELINE)
    assert_close(result, a @ b)
    assert not pipeline
    AutotuneProcessPool.shutdown_instance()


def test_a_variable_turns_the_pipeline_on(run_script: RunScript, tmp_path: Path) -> None:
    script = """
        import math
        import torch
        from torch._inductor.autotune_process import AsyncAutotuner

        if __name__ == "__main__":  # which the pipeline's process is not
            torch._inductor.config.benchmark_epilogue_fusion = False
            a, b = torch.randn(16, 16, device="mtia"), torch.randn(16, 16, device="mtia")
            torch.testing.assert_close(torch.compile(torch.mm)(a, b), a @ b)
            times = [future.result() for future in AsyncAutotuner.choice_hash_to_future.values()]
            print(len(times) > 1, all(0 < time < math.inf for time in times))
    """
    finished = run_script(
        script,
        TORCHINDUCTOR_PIPELINE_GEMM_AUTOTUNING="1",
        TORCHINDUCTOR_MAX_AUTOTUNE="1",
        TORCHINDUCTOR_CACHE_DIR=str(tmp_path / "cache"),
    )
    assert finished.output() == "True True\n"
