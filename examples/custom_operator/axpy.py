"""Builds axpy.cpp, calls it, and shows where it ran: python examples/custom_operator/axpy.py"""

from __future__ import annotations

from pathlib import Path

import torch
from torch.profiler import profile
from torch.utils import cpp_extension

from torch_mtia.cpp_extension import COMPILE_FLAGS, include_paths, link_flags


def build() -> None:
    """Compiles the extension, or takes what an earlier run compiled, and loads it: torch.ops.example.axpy."""
    cpp_extension.load(
        "mtia_example_axpy",
        [str(Path(__file__).with_name("axpy.cpp"))],
        extra_cflags=[*COMPILE_FLAGS, "-O2"],
        extra_include_paths=include_paths(),
        extra_ldflags=link_flags(),
        is_python_module=False,
    )


def main() -> None:
    build()
    x, y = torch.randn(2, 1 << 20, device="mtia").unbind()
    stream = torch.Stream("mtia")
    stream.wait_stream(torch.accelerator.current_stream())
    with profile() as profiled, stream:
        result = torch.ops.example.axpy(2, x, y)
    torch.testing.assert_close(result, 2 * x + y)
    print(profiled.key_averages().table(sort_by="device_time_total", row_limit=5))


if __name__ == "__main__":
    main()
