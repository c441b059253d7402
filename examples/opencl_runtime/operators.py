"""Builds operators.cpp and calls it: TORCH_MTIA_RUNTIME=$PWD/libopencl_driver.so python operators.py"""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch.utils import cpp_extension

import torch_mtia
from torch_mtia.cpp_extension import COMPILE_FLAGS, include_paths, link_flags


def build() -> None:
    """Compiles the extension, or takes what an earlier run compiled, and loads it: torch.ops.opencl_example.axpy."""
    driver = Path(os.environ["TORCH_MTIA_RUNTIME"])  # the library that is in use has the queues and buffers
    headers = [path for folder in include_paths() for path in (folder, f"{folder}/torch_mtia/runtime")]
    cpp_extension.load(
        "mtia_example_opencl",
        [str(Path(__file__).with_name("operators.cpp"))],
        extra_cflags=[*COMPILE_FLAGS, "-O2", "-DCL_TARGET_OPENCL_VERSION=200"],
        extra_include_paths=[*headers, str(Path(__file__).parent)],
        extra_ldflags=[*link_flags(), str(driver), f"-Wl,-rpath,{driver.parent}", "-lOpenCL"],
        is_python_module=False,
    )


def main() -> None:
    build()
    x, y = torch.randn(2, 1 << 20).to("mtia").unbind()
    stream = torch.Stream("mtia")
    stream.wait_stream(torch.accelerator.current_stream())
    with torch_mtia.fallback.forbid(), stream:
        result = torch.ops.opencl_example.axpy(2, x, y)
    stream.synchronize()
    torch.testing.assert_close(result.cpu(), 2 * x.cpu() + y.cpu())
    print("the same as on the CPU")


if __name__ == "__main__":
    main()
