"""Builds the driver and the operators. Everything else is in pyproject.toml."""

import os
from pathlib import Path

# The headers and the generator are needed, not the device; an installed older build of this package must not load.
os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"

import torch  # noqa: F401 - torch_mtia comes after it
from setuptools import Extension, setup
from torch.utils.cpp_extension import BuildExtension

from torch_mtia.cpp_extension import COMPILE_FLAGS, MtiaExtension, generate_registration, include_paths

generated = Path("build/generated")
registration = generate_registration(Path("yaml/native_functions.yaml"), generated)
flags = ["-O2", "-g0", "-fvisibility=hidden", "-Wall"]

setup(
    ext_modules=[
        # Without PyTorch: the driver knows mtia_runtime.h alone.
        Extension(
            "torch_@NAME@.driver",
            ["csrc/driver.cpp"],
            include_dirs=include_paths(),
            extra_compile_args=[*COMPILE_FLAGS, *flags],
        ),
        MtiaExtension(
            "torch_@NAME@.operators",
            ["csrc/operators.cpp", str(registration)],
            include_dirs=[str(generated.resolve())],
            extra_compile_args=flags,
        ),
    ],
    cmdclass={"build_ext": BuildExtension.with_options(no_python_abi_suffix=True)},
)
