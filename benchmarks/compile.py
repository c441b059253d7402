"""torch.compile on mtia against torch.compile on the CPU (Inductor's C++), and against eager PyTorch on the CPU.

python benchmarks/compile.py --threads 1
python benchmarks/compile.py --group models
python benchmarks/compile.py --cases 'softmax.*inductor'

Groups: programs, eager, matmul, models, start, call, memory. The rows of memory are MiB, not microseconds.
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
from timing import DEVICE, Bar, Case, Group, Side, is_known_to_onednn, main, on, wait_for_compile_workers, work_of
from torch.nn import functional as F
from torch.utils import _pytree as pytree

from torch_mtia.door import device_module

SEED = 0
PROGRAM_GROUP = Group("programs against Inductor's C++", Bar(ratio=1.3))
EAGER_GROUP = Group("programs against eager", Bar())
MATMUL_GROUP = Group("matmul + bias + activation", Bar(ratio=1.1))
MODEL_GROUP = Group("models", Bar(ratio=1.2))
START_GROUP = Group("start", Bar())
CALL_GROUP = Group("call", Bar())
MEMORY_GROUP = Group("memory", Bar())
NOT_SLOWER = Bar(ratio=1.0)
SHAPE = Shape()


def compiled_side(
    device: str, function: Callable[..., Any], operands: Any, compared: Callable[[Any], object], calls: int = 1
) -> Side:
    outputs: list[Any] = [None]
    wait_for_compile_workers()

    def run() -> None:
        for _ in range(calls):
            outputs[0] = function(*operands)

    def result() -> object:
        return pytree.tree_map_only(torch.Tensor, lambda t: t.detach().cpu(), compared(outputs[0]))

    return on(device, run, result)


# Programs -------------------------------------------------------------------------------------------------------------


def program_side(device: str, program: Program, wrap: Callable[[Any], Any]) -> Side:
    torch.manual_seed(SEED)
    operands = [operand.to(device) for operand in program.operands()]
    torch._dynamo.reset()
    return compiled_side(device, wrap(program.function), operands, program.compared)


def program_cases(program: Program) -> list[Case]:
    def case(peer: str, wrap: Callable[[Any], Any], group: Group) -> Case:
        return Case(
            f"{program.name}: {peer}",
            ours=lambda: program_side(DEVICE, program, torch.compile),
            peer=lambda: program_side("cpu", program, wrap),
            peer_name=peer,
            bar=NOT_SLOWER,
            group=group,
            tolerance=program.tolerance,
            work=lambda: work_of(program.function, program.operands),
        )

    return [case("inductor", torch.compile, PROGRAM_GROUP), case("eager", lambda function: function, EAGER_GROUP)]


# Matrix products ------------------------------------------------------------------------------------------------------

Product = tuple[int, int, int, Callable[[torch.Tensor], torch.Tensor]]
# Rows, columns and depth of a product, and what is fused with it.
PRODUCTS: tuple[Product, ...] = (
    (128, 1024, 1024, F.relu),
    (512, 512, 512, F.relu),
    (1024, 1024, 256, F.relu),
    (2048, 256, 1024, F.relu),
    (64, 2048, 512, F.gelu),
    (256, 256, 256, F.gelu),
    (1024, 1024, 64, F.gelu),
    (2048, 1024, 128, F.gelu),
)
# What mode="max-autotune-no-cudagraphs" does, without a table of the choices on the screen.
AUTOTUNED: dict[str, Any] = {
    "max_autotune": True,
    "coordinate_descent_tuning": True,
    "autotune_num_choices_displayed": 0,
    "max_autotune_report_choices_stats": False,
}


def product_operands(product: Product, dtype: torch.dtype) -> list[torch.Tensor]:
    rows, columns, depth, _ = product
    x, weight, bias = torch.randn(rows, depth), torch.randn(columns, depth), torch.randn(columns)
    return [operand.to(dtype) for operand in (x, weight / depth**0.5, bias)]


def product_side(device: str, product: Product, dtype: torch.dtype) -> Side:
    torch.manual_seed(SEED)
    activation = product[3]
    operands = [operand.to(device) for operand in product_operands(product, dtype)]
    torch._dynamo.reset()

    def function(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = activation(F.linear(x, weight, bias))
        return result

    if device == DEVICE:
        function = torch.compile(function, options=AUTOTUNED)
    return compiled_side(device, function, operands, lambda result: result)


def product_case(product: Product, dtype: torch.dtype) -> Case:
    rows, columns, depth, activation = product
    return Case(
        f"{rows} x {columns} x {depth} {activation.__name__} {str(dtype).removeprefix('torch.')}",
        ours=lambda: product_side(DEVICE, product, dtype),
        peer=lambda: product_side("cpu", product, dtype),
        peer_name="eager",
        group=MATMUL_GROUP,
        tolerance=BF16 if dtype == torch.bfloat16 else SUMS,
        work=lambda: work_of(F.linear, lambda: product_operands(product, dtype)),
    )


# Models ---------------------------------------------------------------------------------------------------------------


def inference(device: str, model: Model) -> Side:
    torch.manual_seed(SEED)
    torch._dynamo.reset()
    network = torch.compile(model.make(SHAPE).to(device).eval())

    @torch.no_grad()
    def run() -> torch.Tensor:
        return model.loss(network, SHAPE, device)

    with inductor_config.patch(freezing=True):  # Dynamo asks the configuration too, so options are not enough
        run()
    return compiled_side(device, run, (), lambda loss: loss)


def training_step(device: str, model: Model) -> tuple[Callable[[], torch.Tensor], Callable[[], int]]:
    """A step, of which forward and backward are compiled and the optimizer is eager; and how many bytes it leaves."""
    torch.manual_seed(SEED)
    torch._dynamo.reset()
    gc.collect()  # a compiled model is part of cycles: that of the sample before is still there
    network = model.make(SHAPE).to(device)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-5)
    compiled = torch.compile(network)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model.loss(compiled, SHAPE, device)
        loss.backward()
        optimizer.step()
        return loss

    def kept() -> int:
        parameters = list(network.parameters())
        states = [value for state in optimizer.state.values() for value in state.values()]
        kept = [*parameters, *network.buffers(), *(p.grad for p in parameters if p.grad is not None), *states]
        return sum(tensor.untyped_storage().nbytes() for tensor in kept)

    return step, kept


def training(device: str, model: Model) -> Side:
    return compiled_side(device, training_step(device, model)[0], (), lambda loss: loss)


def model_case(model: Model, make: Callable[[str, Model], Side]) -> Case:
    return Case(
        f"{model.name}, {make.__name__}",
        ours=lambda: make(DEVICE, model),
        peer=lambda: make("cpu", model),
        peer_name="inductor",
        group=MODEL_GROUP,
        tolerance=SUMS,
    )


# Compile time ---------------------------------------------------------------------------------------------------------


def start_case(name: str, bar: float, what: str, key: str = "calls", *, warm: bool = False) -> Case:
    return Case(
        name,
        ours=lambda: started(what, DEVICE, key, warm),
        peer=lambda: started(what, "cpu", key, warm),
        peer_name="inductor",
        bar=Bar(ratio=bar),
        group=START_GROUP,
        most_samples=2,
    )


START_CASES = (
    start_case(f"cold start of {len(PROGRAMS)} programs", 3.0, "programs"),
    start_case(f"cold start of {len(MODELS)} models", 2.0, "models"),
    start_case("of it, kernels of the programs", 4.0, "programs", "kernels"),
    start_case(f"cold start of Llama with {len(LENGTHS)} lengths", 2.0, "lengths"),
    start_case(f"warm start of {len(PROGRAMS)} programs", 1.0, "programs", warm=True),
    start_case(f"warm start of {len(MODELS)} models", 1.0, "models", warm=True),
)

# One call -------------------------------------------------------------------------------------------------------------

CALLS = 1000


def program_of_one_kernel(x: torch.Tensor) -> torch.Tensor:
    return x.sin() + 1


def program_of_ten_kernels(x: torch.Tensor) -> torch.Tensor:
    """Each needs all that the one before gave."""
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
    ours: Make,
    peer_device: str,
    peer: Make,
    peer_name: str,
    shape: tuple[int, ...] = (16,),
    bar: float = 1.0,
) -> Case:
    return Case(
        f"a call of {what} on 16 elements",
        ours=lambda: call_side(DEVICE, ours, shape),
        peer=lambda: call_side(peer_device, peer, shape),
        operations=CALLS,
        peer_name=peer_name,
        bar=Bar(ratio=bar),
        group=CALL_GROUP,
    )


CALL_CASES = (
    call_case("one kernel", compiled, "cpu", compiled, "inductor"),
    call_case("ten kernels", ten_compiled, "cpu", ten_compiled, "inductor", (4, 4), 1.5),
    call_case("a package of one kernel", packaged, "cpu", packaged, "a package on the CPU"),
    call_case("a package of one kernel", packaged, DEVICE, compiled, "the Python wrapper"),
)

# Memory ---------------------------------------------------------------------------------------------------------------

MIB = 2**20


def peak_memory(device: str, model: Model) -> Side:
    """A side whose "time" is the most memory allocated during a training step: a MiB counts as a microsecond."""

    def measure() -> float:
        return (peak_on_mtia(model) if device == DEVICE else peak_on_cpu(model)) / MIB * 1e-6

    return Side(lambda: None, lambda: None, lambda: None, measure)


def peak_on_mtia(model: Model) -> int:
    step, _ = training_step(DEVICE, model)
    step()
    device_module().synchronize()
    device_module().reset_peak_memory_stats()
    step()
    device_module().synchronize()
    return int(device_module().max_memory_allocated())


def peak_on_cpu(model: Model) -> int:
    """What is there before the step, and what the profiler sees allocated and freed during it."""
    step, kept = training_step("cpu", model)
    step()
    allocated = peak = kept()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        step()
    events = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    for event in sorted(events, key=lambda event: event.start_ns()):
        allocated += event.nbytes()
        peak = max(peak, allocated)
    return peak


def memory_case(model: Model) -> Case:
    return Case(
        f"{model.name}, peak memory (MiB)",
        ours=lambda: peak_memory(DEVICE, model),
        peer=lambda: peak_memory("cpu", model),
        peer_name="inductor",
        bar=NOT_SLOWER,
        group=MEMORY_GROUP,
        most_samples=2,
    )


CASES = [
    *(case for program in PROGRAMS for case in program_cases(program)),
    *(
        product_case(product, dtype)
        for dtype in (torch.float32, torch.bfloat16)
        if is_known_to_onednn(dtype)
        for product in PRODUCTS
    ),
    *(model_case(model, make) for model in MODELS for make in (inference, training)),
    *START_CASES,
    *CALL_CASES,
    *(memory_case(model) for model in MODELS),
]

if __name__ == "__main__":
    if torch.backends.cpu.get_cpu_capability() == "AVX2":
        inductor_config.cpp.simdlen = 256  # Inductor asks the processor, not ATen, which may be limited
    sys.exit(main(CASES, __doc__))
