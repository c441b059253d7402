"""Hand-written Triton kernels on mtia against eager PyTorch on the CPU device, and the cost of compiling them.

python benchmarks/triton_kernels.py --threads 1
python benchmarks/triton_kernels.py --cases 'softmax'
"""

from __future__ import annotations

import dataclasses
import importlib.util
import itertools
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import triton.language as tl
import triton_programs as programs
from timing import (
    AS_FAST,
    CPU,
    MEBIBYTE,
    SEED,
    Case,
    Group,
    Side,
    Target,
    Tolerance,
    calling,
    is_known_to_onednn,
    main,
    normal,
    work_of,
)
from torch.nn import functional as F

from torch_mtia.triton.architecture import architecture

EXAMPLES = Path(__file__).parent.parent / "examples"
sys.path.append(str(EXAMPLES))  # some of the kernels

import triton_attention  # noqa: E402
import triton_dropout  # noqa: E402
import triton_layer_norm  # noqa: E402
import triton_softmax  # noqa: E402
import triton_vector_add  # noqa: E402

SUMS = Tolerance(relative=1e-4, absolute=1e-3)
ROUGH = Tolerance(relative=2e-2, absolute=0.5)  # of sums in bfloat16
WEIGHTED = Tolerance(relative=2e-2, absolute=2e-2)  # of averages in bfloat16
LIBRARIES = "MKL or oneDNN on the CPU device"
KERNELS = Group("Triton kernels", CPU, Target(ratio=1.3))
MATMULS = Group("Triton matmul in fp32", LIBRARIES, AS_FAST)
OTHER_MATMULS = Group("Triton matmul in other dtypes", LIBRARIES)
INT4 = Group("Triton matmul with int4 weights", "ATen's int4 matmul on the CPU device")
INTERPRETED = Group("vector add and the interpreter", "Triton's interpreter (`TRITON_INTERPRET=1`)")
COMPILATION = Group("compilation of a Triton kernel", "")

Operands = Callable[[], Sequence[torch.Tensor]]


@dataclasses.dataclass(frozen=True)
class Kernel:
    name: str
    mtia: Callable[..., torch.Tensor]
    baseline: Callable[..., torch.Tensor]
    operands: Operands
    target: Target = AS_FAST
    group: Group = KERNELS
    reads: int | None = None  # how many of the operands the baseline reads; None: all
    tolerance: Tolerance | None = None
    compared: Callable[[torch.Tensor], torch.Tensor] = lambda result: result


def small_integers(*shape: int) -> torch.Tensor:
    return torch.randint(-8, 8, shape, dtype=torch.int8)


def rotary_operands() -> Sequence[torch.Tensor]:
    angles = torch.rand(1024, 32)
    return [normal(2, 8, 1024, 64), angles.cos(), angles.sin()]


def rotary_eager(x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cosine - b * sine, b * cosine + a * sine], dim=-1)


def fraction_of_zeros(result: torch.Tensor) -> torch.Tensor:
    """All that the results of two random generators have in common."""
    return (result == 0).float().mean()


def one_dnn(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = torch.ops.mkldnn._linear_pointwise(a, b.t(), None, "none", [], "")
    return result


def as_floats(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (a.float() @ b.float()).to(a.dtype)


def fastest(*functions: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """The fastest of several functions that compute the same, chosen at the first call."""
    chosen: list[Callable[..., torch.Tensor]] = []

    def seconds(function: Callable[..., torch.Tensor], operands: Sequence[torch.Tensor]) -> float:
        function(*operands)
        start = time.perf_counter()
        function(*operands)
        return time.perf_counter() - start

    def run(*operands: torch.Tensor) -> torch.Tensor:
        if not chosen:
            chosen.append(min(functions, key=lambda function: seconds(function, operands)))
        return chosen[0](*operands)

    return run


BF16_TARGET = 0.8 if "amx" in architecture() else 0.9
DTYPES = {"fp32": torch.float32, "fp64": torch.float64, "bf16": torch.bfloat16, "int8": torch.int8}


def matmul_kernel(name: str, ratio: float, m: int, n: int, k: int) -> Kernel:
    dtype = DTYPES[name]
    of_bf16 = (torch.matmul, one_dnn) if is_known_to_onednn(torch.bfloat16) else (as_floats,)
    baselines = {"fp32": (torch.matmul, one_dnn), "bf16": of_bf16, "int8": (torch._int_mm,)}
    tolerances = {"fp32": SUMS, "fp64": SUMS, "bf16": ROUGH}
    return Kernel(
        f"matmul {name} {m} x {n} x {k}",
        programs.matmul,
        fastest(*baselines.get(name, (torch.matmul,))),
        lambda: (
            [small_integers(m, k), small_integers(k, n)]
            if dtype == torch.int8
            else [normal(m, k, dtype=dtype), normal(k, n, dtype=dtype)]
        ),
        target=Target(ratio=ratio),
        group=MATMULS if name == "fp32" else OTHER_MATMULS,
        tolerance=tolerances.get(name),
    )


def int4_operands(rows: int, size: int = 4096) -> Sequence[torch.Tensor]:
    """The operands of ATen's kernel, then weights and scales again in the layout of the Triton kernel."""
    groups = size // programs.GROUP
    weight, scale = torch.randint(0, 16, (size, size), dtype=torch.uint8), torch.rand(groups, size) / size**0.5
    halves = weight.view(groups, 2, programs.GROUP // 2, size)
    packed = (halves[:, 0] | halves[:, 1] << 4).reshape(size // 2, size)
    for_aten = torch.ops.aten._convert_weight_to_int4pack_for_cpu(weight.t().contiguous().int(), 1)
    scale_and_zero = torch.stack([scale, torch.zeros_like(scale)], 2).bfloat16()
    return [normal(rows, size, dtype=torch.bfloat16), for_aten, scale_and_zero, packed, scale]


def int4_kernel(rows: int) -> Kernel:
    return Kernel(
        f"matmul bf16 x int4, {rows} x 4096 x 4096",
        lambda x, _weight, _scale, weight, scale: programs.int4_matmul(x, weight, scale),
        lambda x, weight, scale, *_: torch.ops.aten._weight_int4pack_mm_for_cpu(x, weight, programs.GROUP, scale),
        lambda: int4_operands(rows),
        group=INT4,
        reads=3,
        tolerance=ROUGH,
    )


def attention_kernel(name: str) -> Kernel:
    return Kernel(
        f"attention {name} B2 H8 T1024 D64, causal",
        lambda q, k, v: triton_attention.attention(q, k, v, causal=True),
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        lambda: [normal(2, 8, 1024, 64, dtype=DTYPES[name]) for _ in range(3)],
        target=Target(ratio=1.3),
        tolerance=SUMS if name == "fp32" else WEIGHTED,
    )


def decoding_kernel(name: str) -> Kernel:
    return Kernel(
        f"decoding {name} B8 H32 T4096 D64",
        programs.decoding,
        F.scaled_dot_product_attention,
        lambda: [normal(8, 32, length, 64, dtype=DTYPES[name]) for length in (1, 4096, 4096)],
        target=Target(ratio=1.5),
        tolerance=SUMS if name == "fp32" else WEIGHTED,
    )


KERNEL_ROWS: tuple[Kernel, ...] = (
    Kernel(
        "vector add 16M",
        triton_vector_add.add,
        torch.add,
        lambda: [normal(16 * MEBIBYTE), normal(16 * MEBIBYTE)],
    ),
    Kernel(
        "silu(x) * y 16M",
        programs.silu_mul,
        lambda x, y: F.silu(x) * y,
        lambda: [normal(16 * MEBIBYTE), normal(16 * MEBIBYTE)],
        tolerance=SUMS,
    ),
    Kernel("gelu 16M", programs.gelu, F.gelu, lambda: [normal(16 * MEBIBYTE)], tolerance=SUMS),
    *(
        Kernel(
            f"softmax 4096 x {columns}",
            triton_softmax.softmax,
            lambda x: torch.softmax(x, -1),
            lambda columns=columns: [normal(4096, columns)],  # type: ignore[misc]
        )
        for columns in (1024, 8192)
    ),
    Kernel(
        "layer norm 4096 x 1024",
        triton_layer_norm.layer_norm,
        lambda x, w, b: F.layer_norm(x, (1024,), w, b),
        lambda: [normal(4096, 1024), normal(1024), normal(1024)],
        tolerance=SUMS,
    ),
    Kernel(
        "RMS norm 4096 x 1024",
        programs.rms_norm,
        lambda x, w: F.rms_norm(x, (1024,), w, 1e-6),
        lambda: [normal(4096, 1024), normal(1024)],
        tolerance=SUMS,
    ),
    Kernel(
        "sum over the first axis 4096 x 4096",
        programs.sum_first_axis,
        lambda x: x.sum(0),
        lambda: [normal(4096, 4096)],
        tolerance=SUMS,
    ),
    Kernel(
        "sum over the last axis 4096 x 4096",
        programs.sum_last_axis,
        lambda x: x.sum(1),
        lambda: [normal(4096, 4096)],
        tolerance=SUMS,
    ),
    Kernel(
        "x.t() + y 2048 x 2048",
        programs.transpose_add,
        lambda x, y: x.t() + y,
        lambda: [normal(2048, 2048), normal(2048, 2048)],
    ),
    Kernel(
        "cross entropy 4096 x 32000",
        programs.cross_entropy,
        F.cross_entropy,
        lambda: [normal(4096, 32000), torch.randint(32000, (4096,))],
        tolerance=SUMS,
    ),
    Kernel(
        "dropout 16M",
        lambda x: triton_dropout.dropout(x, 0.5, SEED),
        lambda x: F.dropout(x, 0.5),
        lambda: [normal(16 * MEBIBYTE)],
        tolerance=Tolerance(relative=0, absolute=1e-3),
        compared=fraction_of_zeros,
    ),
    Kernel("rotary embedding B2 H8 T1024 D64", programs.rotary, rotary_eager, rotary_operands, tolerance=SUMS),
    *map(attention_kernel, ("fp32", "bf16")),
    *map(decoding_kernel, ("fp32", "bf16")),
    *(matmul_kernel("fp32", 0.95, size, size, size) for size in (512, 1024, 2048)),
    matmul_kernel("fp32", 0.95, 4096, 64, 1024),
    matmul_kernel("fp32", 0.95, 64, 4096, 1024),
    matmul_kernel("fp64", 0.9, 1024, 1024, 1024),
    *(
        matmul_kernel(name, ratio, size, size, size)
        for name, ratio in (("bf16", BF16_TARGET), ("int8", 0.8))
        for size in (1024, 2048)
    ),
    *map(int4_kernel, (1, 4, 16)),
)


def case(kernel: Kernel) -> Case:
    return Case(
        kernel.name,
        kernel.group,
        mtia=lambda: side("mtia", kernel, kernel.mtia),
        baseline=lambda: side("cpu", kernel, kernel.baseline),
        target=kernel.target,
        tolerance=kernel.tolerance,
        work=lambda: work_of(kernel.baseline, lambda: kernel.operands()[: kernel.reads]),
    )


def side(device: str, kernel: Kernel, function: Callable[..., torch.Tensor]) -> Side:
    torch.manual_seed(SEED)
    operands = [operand.to(device) for operand in kernel.operands()]
    return calling(device, lambda: function(*operands), kernel.compared)


# The interpreter -----------------------------------------------------------------------------------------------------

INTERPRETER = """
import sys
import torch
sys.path.append({examples!r})
from triton_vector_add import add_kernel
torch.manual_seed({seed})
x, y = torch.randn({size}), torch.randn({size})
out = torch.empty_like(x)
for line in sys.stdin:
    add_kernel[({size} // 4096,)](x, y, out, {size}, BLOCK=4096)
    print(float(out.double().sum()), flush=True)
"""


def interpreter() -> Side:
    """Triton's interpreter, in a process of its own: it replaces `triton.jit` there."""
    script = INTERPRETER.format(examples=str(EXAMPLES), seed=SEED, size=MEBIBYTE)
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        env=os.environ | {"TRITON_INTERPRET": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    requests, answers, last = process.stdin, process.stdout, [0.0]

    def run() -> None:
        requests.write("again\n")
        requests.flush()
        last[0] = float(answers.readline())

    return Side(run, lambda: None, lambda: last[0])


def added() -> Side:
    torch.manual_seed(SEED)
    x, y = normal(MEBIBYTE).to("mtia"), normal(MEBIBYTE).to("mtia")
    return calling("mtia", lambda: triton_vector_add.add(x, y), lambda result: float(result.cpu().double().sum()))


# Compilation ---------------------------------------------------------------------------------------------------------


def compilation(source: Path, name: str, warm_up: Callable[[object], object]) -> Side:
    """From source to a kernel that can be launched: each run compiles a kernel that is new to the cache."""
    folder = Path(tempfile.mkdtemp(prefix="triton_kernels_"))
    os.environ["TRITON_CACHE_DIR"] = str(folder / "cache")
    copies = itertools.count()

    def run() -> None:
        copy = next(copies)
        path = folder / f"copy{copy}.py"
        path.write_text(source.read_text().replace(f"def {name}(", f"def {name}{copy}("))
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        compiled = warm_up(getattr(module, f"{name}{copy}"))
        compiled._init_handles()  # type: ignore[attr-defined]

    return Side(run, lambda: None, lambda: None)


def compile_silu() -> Side:
    pointers = (torch.float32,) * 3
    return compilation(
        Path(programs.__file__),
        "silu_mul_kernel",
        lambda kernel: kernel.warmup(*pointers, 16 * MEBIBYTE, BLOCK=4096, grid=(1,)),  # type: ignore[attr-defined]
    )


def compile_attention() -> Side:
    pointers = (torch.float32,) * 4
    blocks = {"CAUSAL": True, "DIMENSION": 64, "BLOCK_M": 64, "BLOCK_N": 64}
    return compilation(
        EXAMPLES / "triton_attention.py",
        "attention_kernel",
        lambda kernel: kernel.warmup(*pointers, 1024, 0.125, **blocks, grid=(1,)),  # type: ignore[attr-defined]
    )


def compile_matmul() -> Side:
    blocks = {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 64, "ACCUMULATOR": tl.float32}
    return compilation(
        Path(programs.__file__),
        "matmul_kernel",
        lambda kernel: kernel.warmup(*(torch.bfloat16,) * 3, 1024, 1024, **blocks, grid=(1,)),  # type: ignore[attr-defined]
    )


CASES = (
    *(case(kernel) for kernel in KERNEL_ROWS),
    Case("vector add 1M", INTERPRETED, added, interpreter, target=Target(ratio=300)),
    Case("compile silu(x) * y", COMPILATION, compile_silu, target=Target(most_us=60_000)),
    Case("compile attention", COMPILATION, compile_attention, target=Target(most_us=250_000)),
    Case("compile matmul", COMPILATION, compile_matmul, target=Target(most_us=60_000)),
)

if __name__ == "__main__":
    sys.exit(main(CASES, __doc__))
