"""The time of what autotuning chooses for the matmuls of compile.py, in fresh processes. The two baselines are ATen's
operators on the same device, called by compiled code without autotuning, and by eager code.

python benchmarks/choices.py --processes 10
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
from compile import AUTOTUNED, MATMULS, Matmul, matmul_name, matmul_operands
from timing import DEVICE, SEED, wait_for_compile_workers
from torch.nn import functional as F

from torch_mtia.backend import device_module

DTYPES = (torch.float32, torch.bfloat16)
SAMPLES = 21
SAMPLE_SECONDS = 5e-3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=10)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--one", action="store_true", help="measure in this process and print JSON")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.one:
        wait_for_compile_workers()
        print(json.dumps({matmul_name(*case): ratios(*case) for case in cases()}))
        return
    found = [in_a_fresh_process(options.threads) for _ in range(options.processes)]
    print(f"time of the operators / time of the choice, {options.threads} threads, {len(found)} processes")
    print(f"{'':40} {'compiled: least, median':>25} {'eager: least, median':>25}")
    for name in found[0]:
        by_baseline = list(zip(*(ratios_of[name] for ratios_of in found), strict=True))
        columns = (f"{min(ratios):17.3f} {statistics.median(ratios):7.3f}" for ratios in by_baseline)
        print(f"{name:40} {' '.join(columns)}")


def cases() -> list[tuple[Matmul, torch.dtype]]:
    return [(matmul, dtype) for dtype in DTYPES for matmul in MATMULS]


def in_a_fresh_process(threads: int) -> dict[str, list[float]]:
    with tempfile.TemporaryDirectory() as folder:
        caches = {"TORCHINDUCTOR_CACHE_DIR": folder}
        command = [sys.executable, __file__, "--one", "--threads", str(threads)]
        finished = subprocess.run(command, env=os.environ | caches, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(finished.stdout)  # type: ignore[no-any-return]


def ratios(matmul: Matmul, dtype: torch.dtype) -> tuple[float, float]:
    """The ratios to the two baselines, from medians of interleaved samples."""
    torch.manual_seed(SEED)
    activation = matmul[3]
    operands = [operand.to(DEVICE) for operand in matmul_operands(matmul, dtype)]

    def eager(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return activation(F.linear(x, weight, bias))

    functions: list[Callable[..., Any]] = []
    for options in (AUTOTUNED, {}):
        torch._dynamo.reset()
        functions.append(torch.compile(eager, options=options))
        torch.testing.assert_close(functions[-1](*operands), eager(*operands), rtol=2e-2, atol=2e-2)
    functions.append(eager)
    calls = max(1, int(SAMPLE_SECONDS / seconds(eager, operands, 5)))
    samples = [[seconds(function, operands, calls) for function in functions] for _ in range(SAMPLES)]
    chosen, compiled, of_eager = (statistics.median(times) for times in zip(*samples, strict=True))
    return compiled / chosen, of_eager / chosen


def seconds(function: Callable[..., Any], operands: list[torch.Tensor], calls: int) -> float:
    """Seconds of a call; the device is waited for after the last one."""
    start = time.perf_counter()
    for _ in range(calls):
        function(*operands)
    device_module().synchronize()
    return (time.perf_counter() - start) / calls


if __name__ == "__main__":
    main()
