"""torch.compile on mtia against torch.compile on the CPU (Inductor's C++), and against eager PyTorch on the CPU.

python benchmarks/compile.py --threads 1
python benchmarks/compile.py --group models
python benchmarks/compile.py --cases softmax

`--list` prints the cases with their groups. The group for peak memory is in MiB, not in microseconds.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch._inductor.config as inductor_config
from compile_models import MODELS, Model, Shape
from compile_programs import BF16, PROGRAMS, SUMS, Program
from compile_start import LENGTHS, started
from timing import (
    AS_FAST,
    CPU,
    DEVICE,
    INDUCTOR,
    MEBIBYTE,
    SEED,
    Case,
    Group,
    Side,
    Target,
    calling,
    is_known_to_onednn,
    main,
    sampled_by,
    wait_for_compile_workers,
    work_of,
)
from torch.nn import functional as F

from torch_mtia.backend import device_module

PROGRAM_GROUP = Group("compiled programs and compiled CPU code", INDUCTOR, Target(ratio=1.3))
EAGER_GROUP = Group("compiled programs and eager CPU code", CPU)
MATMUL_GROUP = Group("autotuned matmul with bias and activation", CPU, Target(ratio=1.1))
MODEL_GROUP = Group("compiled models", INDUCTOR, Target(ratio=1.2))
COLD_GROUP = Group("cold start", INDUCTOR, about="The first calls, in a fresh process with empty caches.")
KERNELS_GROUP = Group("kernels of a cold start", INDUCTOR, about="The part of a cold start that compiles kernels.")
WARM_GROUP = Group("warm start", INDUCTOR, about="The first calls, in a fresh process with filled caches.")
CALL_GROUP = Group("call of compiled code", INDUCTOR)
PACKAGE_GROUP = Group("call of a package", "a package on the CPU device")
WRAPPER_GROUP = Group("call of a package and of a wrapper", "the compiled function's Python wrapper, on `mtia`")
MEMORY_GROUP = Group("peak memory of a training step", INDUCTOR, unit="MiB")
SHAPE = Shape()


def compiled_side(
    device: str, function: Callable[..., Any], operands: Any, compared: Callable[[Any], object], calls: int = 1
) -> Side:
    wait_for_compile_workers()
    return calling(device, lambda: function(*operands), compared, calls)


# Programs -------------------------------------------------------------------------------------------------------------


def program_side(device: str, program: Program, wrap: Callable[[Any], Any]) -> Side:
    torch.manual_seed(SEED)
    operands = [operand.to(device) for operand in program.operands()]
    torch._dynamo.reset()
    return compiled_side(device, wrap(program.function), operands, program.compared)


def program_case(program: Program, group: Group) -> Case:
    baseline: Callable[[Any], Any] = torch.compile if group == PROGRAM_GROUP else lambda function: function
    return Case(
        program.name,
        group,
        mtia=lambda: program_side(DEVICE, program, torch.compile),
        baseline=lambda: program_side("cpu", program, baseline),
        target=AS_FAST,
        tolerance=program.tolerance,
        work=lambda: work_of(program.function, program.operands),
    )


# Matmuls --------------------------------------------------------------------------------------------------------------

Matmul = tuple[int, int, int, Callable[[torch.Tensor], torch.Tensor]]
# m, n and k, and the activation that is fused.
MATMULS: tuple[Matmul, ...] = (
    (128, 1024, 1024, F.relu),
    (512, 512, 512, F.relu),
    (1024, 1024, 256, F.relu),
    (2048, 256, 1024, F.relu),
    (64, 2048, 512, F.gelu),
    (256, 256, 256, F.gelu),
    (1024, 1024, 64, F.gelu),
    (2048, 1024, 128, F.gelu),
)
# What mode="max-autotune-no-cudagraphs" does, without printing a table of the choices.
AUTOTUNED: dict[str, Any] = {
    "max_autotune": True,
    "coordinate_descent_tuning": True,
    "autotune_num_choices_displayed": 0,
    "max_autotune_report_choices_stats": False,
}


def matmul_name(matmul: Matmul, dtype: torch.dtype) -> str:
    m, n, k, activation = matmul
    return f"{m} x {n} x {k} {activation.__name__} {str(dtype).removeprefix('torch.')}"


def matmul_operands(matmul: Matmul, dtype: torch.dtype) -> list[torch.Tensor]:
    m, n, k, _ = matmul
    x, weight, bias = torch.randn(m, k), torch.randn(n, k), torch.randn(n)
    return [operand.to(dtype) for operand in (x, weight / k**0.5, bias)]


def matmul_side(device: str, matmul: Matmul, dtype: torch.dtype) -> Side:
    torch.manual_seed(SEED)
    activation = matmul[3]
    operands = [operand.to(device) for operand in matmul_operands(matmul, dtype)]
    torch._dynamo.reset()

    def function(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = activation(F.linear(x, weight, bias))
        return result

    if device == DEVICE:
        function = torch.compile(function, options=AUTOTUNED)
    return compiled_side(device, function, operands, lambda result: result)


def matmul_case(matmul: Matmul, dtype: torch.dtype) -> Case:
    return Case(
        matmul_name(matmul, dtype),
        MATMUL_GROUP,
        mtia=lambda: matmul_side(DEVICE, matmul, dtype),
        baseline=lambda: matmul_side("cpu", matmul, dtype),
        tolerance=BF16 if dtype == torch.bfloat16 else SUMS,
        work=lambda: work_of(F.linear, lambda: matmul_operands(matmul, dtype)),
    )


# Models ---------------------------------------------------------------------------------------------------------------


def inference(device: str, model: Model) -> Side:
    torch.manual_seed(SEED)
    torch._dynamo.reset()
    network = torch.compile(model.make(SHAPE).to(device).eval())

    @torch.no_grad()
    def run() -> torch.Tensor:
        return model.loss(network, SHAPE, device)

    with inductor_config.patch(freezing=True):  # Dynamo reads the configuration too: options do not suffice
        run()
    return compiled_side(device, run, (), lambda loss: loss)


def training_step(device: str, model: Model) -> tuple[Callable[[], torch.Tensor], Callable[[], int]]:
    """A step, with an eager optimizer; and a function that returns how many bytes stay allocated after it."""
    torch.manual_seed(SEED)
    torch._dynamo.reset()
    gc.collect()  # a compiled model is part of reference cycles: the previous sample's still exists
    network = model.make(SHAPE).to(device)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-5)
    compiled = torch.compile(network)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model.loss(compiled, SHAPE, device)
        loss.backward()
        optimizer.step()
        return loss

    def persistent_bytes() -> int:
        parameters = list(network.parameters())
        states = [value for state in optimizer.state.values() for value in state.values()]
        persistent = [*parameters, *network.buffers(), *(p.grad for p in parameters if p.grad is not None), *states]
        return sum(tensor.untyped_storage().nbytes() for tensor in persistent)

    return step, persistent_bytes


def training(device: str, model: Model) -> Side:
    return compiled_side(device, training_step(device, model)[0], (), lambda loss: loss)


def model_case(model: Model, make: Callable[[str, Model], Side]) -> Case:
    return Case(
        f"{model.name}, {make.__name__}",
        MODEL_GROUP,
        mtia=lambda: make(DEVICE, model),
        baseline=lambda: make("cpu", model),
        tolerance=SUMS,
    )


# Compile time ---------------------------------------------------------------------------------------------------------


def start_case(name: str, group: Group, target: Target, what: str) -> Case:
    key = "kernels" if group == KERNELS_GROUP else "calls"
    return Case(
        name,
        group,
        mtia=lambda: started(what, DEVICE, key, group == WARM_GROUP),
        baseline=lambda: started(what, "cpu", key, group == WARM_GROUP),
        target=target,
        most_samples=2,
    )


START_CASES = (
    start_case(f"cold start of {len(PROGRAMS)} programs", COLD_GROUP, Target(ratio=3.0), "programs"),
    start_case(f"cold start of {len(MODELS)} models", COLD_GROUP, Target(ratio=2.0), "models"),
    start_case(f"cold start of Llama with {len(LENGTHS)} lengths", COLD_GROUP, Target(ratio=2.0), "lengths"),
    start_case(f"kernels of {len(PROGRAMS)} programs", KERNELS_GROUP, Target(ratio=4.0), "programs"),
    start_case(f"warm start of {len(PROGRAMS)} programs", WARM_GROUP, AS_FAST, "programs"),
    start_case(f"warm start of {len(MODELS)} models", WARM_GROUP, AS_FAST, "models"),
)

# One call -------------------------------------------------------------------------------------------------------------

CALLS = 1000


def program_of_one_kernel(x: torch.Tensor) -> torch.Tensor:
    return x.sin() + 1


def program_of_ten_kernels(x: torch.Tensor) -> torch.Tensor:
    """Each kernel depends on all results of the one before, which prevents fusion."""
    for index in range(10):
        x = (x + index).softmax(index % 2)
    return x


class OneKernel(torch.nn.Module):
    forward = staticmethod(program_of_one_kernel)


Make = Callable[[tuple[torch.Tensor, ...]], Callable[..., Any]]


def compiled(_operands: tuple[torch.Tensor, ...]) -> Callable[..., Any]:
    torch._dynamo.reset()
    return torch.compile(program_of_one_kernel)


def ten_compiled(_operands: tuple[torch.Tensor, ...]) -> Callable[..., Any]:
    torch._dynamo.reset()
    return torch.compile(program_of_ten_kernels)


def packaged(operands: tuple[torch.Tensor, ...]) -> Callable[..., Any]:
    program = torch.export.export(OneKernel(), operands)
    return torch._inductor.aoti_load_package(torch._inductor.aoti_compile_and_package(program))


def call_side(device: str, make: Make, shape: tuple[int, ...]) -> Side:
    operands = (torch.linspace(0, 1, 16).view(shape).to(device),)
    return compiled_side(device, make(operands), operands, lambda result: result, CALLS)


def call_case(
    what: str,
    group: Group,
    mtia: Make,
    baseline: tuple[str, Make],
    shape: tuple[int, ...] = (16,),
    target: Target = AS_FAST,
) -> Case:
    return Case(
        f"a call of {what} on 16 elements",
        group,
        mtia=lambda: call_side(DEVICE, mtia, shape),
        baseline=lambda: call_side(*baseline, shape),
        operations=CALLS,
        target=target,
    )


CALL_CASES = (
    call_case("one kernel", CALL_GROUP, compiled, ("cpu", compiled)),
    call_case("ten kernels", CALL_GROUP, ten_compiled, ("cpu", ten_compiled), (4, 4), Target(ratio=1.5)),
    call_case("a package of one kernel", PACKAGE_GROUP, packaged, ("cpu", packaged)),
    call_case("a package of one kernel", WRAPPER_GROUP, packaged, (DEVICE, compiled)),
)

# Memory ---------------------------------------------------------------------------------------------------------------


def peak_memory(device: str, model: Model) -> Side:
    """A side whose "time" is the most memory allocated during a training step: a MiB counts as a microsecond."""

    def measure() -> float:
        return (peak_on_mtia(model) if device == DEVICE else peak_on_cpu(model)) / MEBIBYTE * 1e-6

    return sampled_by(measure)


def peak_on_mtia(model: Model) -> int:
    step, _ = training_step(DEVICE, model)
    step()
    device_module().synchronize()
    device_module().reset_peak_memory_stats()
    step()
    device_module().synchronize()
    return int(device_module().max_memory_allocated())


def peak_on_cpu(model: Model) -> int:
    """The bytes allocated before the step, and what the profiler records as allocated and freed during it."""
    step, persistent_bytes = training_step("cpu", model)
    step()
    allocated = peak = persistent_bytes()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        step()
    events = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    for event in sorted(events, key=lambda event: event.start_ns()):
        allocated += event.nbytes()
        peak = max(peak, allocated)
    return peak


def memory_case(model: Model) -> Case:
    return Case(
        f"{model.name}, peak memory",
        MEMORY_GROUP,
        mtia=lambda: peak_memory(DEVICE, model),
        baseline=lambda: peak_memory("cpu", model),
        target=AS_FAST,
        most_samples=2,
    )


CASES = [
    *(program_case(program, group) for group in (PROGRAM_GROUP, EAGER_GROUP) for program in PROGRAMS),
    *(
        matmul_case(matmul, dtype)
        for dtype in (torch.float32, torch.bfloat16)
        if is_known_to_onednn(dtype)
        for matmul in MATMULS
    ),
    *(model_case(model, make) for model in MODELS for make in (inference, training)),
    *START_CASES,
    *CALL_CASES,
    *(memory_case(model) for model in MODELS),
]

if __name__ == "__main__":
    if torch.backends.cpu.get_cpu_capability() == "AVX2":
        inductor_config.cpp.simdlen = 256  # Inductor asks the processor, not ATen, whose level may be limited
    sys.exit(main(CASES, __doc__))
