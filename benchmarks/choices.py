"""What autotuning chooses for the products of compile.py, in fresh processes, against the operators on the same device:
as compiled code without autotuning calls them, which is what a choice is between, and as eager code does.

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
from compile import AUTOTUNED, PRODUCTS, SEED, Product
from timing import DEVICE, wait_for_compile_workers
from torch.nn import functional as F

from torch_mtia.door import device_module

DTYPES = (torch.float32, torch.bfloat16)
SAMPLES = 21
SAMPLE_SECONDS = 5e-3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=10)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--one", action="store_true", help="in this process; prints JSON")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.one:
        wait_for_compile_workers()
        print(json.dumps({name(*case): ratios(*case) for case in cases()}))
        return
    found = [in_a_fresh_process(options.threads) for _ in range(options.processes)]
    print(f"time of the operators / time of what was chosen, {options.threads} threads, {len(found)} processes")
    print(f"{'':40} {'compiled: least, median':>25} {'eager: least, median':>25}")
    for product in found[0]:
        by_peer = list(zip(*(each[product] for each in found), strict=True))
        print(
            f"{product:40} " + " ".join(f"{min(ratios):17.3f} {statistics.median(ratios):7.3f}" for ratios in by_peer)
        )


def cases() -> list[tuple[Product, torch.dtype]]:
    return [(product, dtype) for dtype in DTYPES for product in PRODUCTS]


def name(product: Product, dtype: torch.dtype) -> str:
    rows, columns, depth, activation = product
    return f"{rows} x {columns} x {depth} {activation.__name__} {str(dtype).removeprefix('torch.')}"


def in_a_fresh_process(threads: int) -> dict[str, list[float]]:
    with tempfile.TemporaryDirectory() as folder:
        caches = {"TORCHINDUCTOR_CACHE_DIR": folder}
        command = [sys.executable, __file__, "--one", "--threads", str(threads)]
        finished = subprocess.run(command, env=os.environ | caches, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(finished.stdout)  # type: ignore[no-any-return]


def ratios(product: Product, dtype: torch.dtype) -> tuple[float, float]:
    """Of the medians of samples that are taken in turns."""
    torch.manual_seed(SEED)
    rows, columns, depth, activation = product
    x, weight, bias = torch.randn(rows, depth), torch.randn(columns, depth) / depth**0.5, torch.randn(columns)
    operands = [operand.to(DEVICE, dtype) for operand in (x, weight, bias)]

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
    """Of a call, with the wait for the device behind the last."""
    start = time.perf_counter()
    for _ in range(calls):
        function(*operands)
    device_module().synchronize()
    return (time.perf_counter() - start) / calls


if __name__ == "__main__":
    main()
