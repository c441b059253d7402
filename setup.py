"""Builds the driver library and the extension module. Everything else about the package is in pyproject.toml."""

from __future__ import annotations

import hashlib
import os
import platform
import runpy
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path

import setuptools
from setuptools import Extension, find_packages, setup

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT))  # for tools.codegen: pip runs this file without its folder on the path
versions = runpy.run_path(str(ROOT / "torch_mtia" / "_versions.py"))

if (sys.platform, platform.machine()) != ("linux", "x86_64"):
    sys.exit(f"error: torch_mtia runs on x86-64 Linux; this is {platform.machine()} {sys.platform}.")

MIN_SETUPTOOLS = 77  # the first that knows pyproject.toml's license expression
if int(setuptools.__version__.partition(".")[0]) < MIN_SETUPTOOLS:
    sys.exit(
        f"error: building torch_mtia needs setuptools {MIN_SETUPTOOLS} or newer; this is {setuptools.__version__}. "
        "Install what requirements/build.txt lists."
    )

os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"  # an installed older build must not load while the new one is made
try:
    import torch
except ImportError as error:
    sys.exit(
        f"error: building torch_mtia needs PyTorch in the environment that builds: {error}. "
        f"Install it (pip install '{versions['torch_requirement']()}') and build with --no-build-isolation."
    )
if message := versions["unsupported_torch"](torch.__version__):
    sys.exit(f"error: {message}.")

os.environ.setdefault("MAX_JOBS", "2")
# Without ninja on the PATH, as in a virtual environment that is not activated, torch compiles one file after the other.
os.environ["PATH"] = os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", "")])

# ccache, if installed, knows a precompiled header by the sum beside it: the file itself is never the same twice.
os.environ["CCACHE_SLOPPINESS"] = f"{os.environ.get('CCACHE_SLOPPINESS', '')},pch_defines,time_macros".lstrip(",")
os.environ["CCACHE_PCH_EXTSUM"] = "1"

from torch.utils.cpp_extension import BuildExtension, CppExtension, get_cxx_compiler, include_paths  # noqa: E402

# What C++ extensions may include: installed under torch_mtia/include/torch_mtia, in the same folders.
PUBLIC_HEADERS = ("runtime/mtia_runtime.h", "core/WorkItem.h", "device/Extension.h")
# The name under which extensions refer to the extension module, which is loaded by then.
SONAME = "libtorch_mtia.so"

HOST_DRIVER = "torch_mtia.lib.libmtia_host"
EXTENSION = "torch_mtia._C"
GENERATED = Path("build/generated")
BUILD_TEMP = Path("build/temp")

# no-math-errno: nobody reads errno after a mathematical function, and setting it keeps square roots from vectorizing.
# Not -mtls-dialect=gnu2, although each operator reads several thread-local variables: before 2.40, glibc's resolver
# loses vector registers at a thread's first access, and the compiler relies on them.
COMPILE_FLAGS = ["-std=c++20", "-O2", "-g0", "-fvisibility=hidden", "-Wall", "-fno-math-errno"]


def sources(*patterns: str) -> list[str]:
    return [str(path.relative_to(ROOT)) for pattern in patterns for path in sorted(ROOT.glob(pattern))]


class Build(BuildExtension):
    """Generates code, then compiles, with ninja's state in one place for all ways to build."""

    def finalize_options(self) -> None:
        super().finalize_options()
        # pip gives each editable build a new temporary folder, which would forget what is up to date.
        self.build_temp = str(BUILD_TEMP)

    def run(self) -> None:
        from tools.codegen import kernel_abi
        from tools.codegen.generate import generate

        kernel_abi.check()

        for extension in self.extensions:
            if extension.name == EXTENSION:
                generated = generate(ROOT / GENERATED)
                extension.sources += [str(path.resolve().relative_to(ROOT)) for path in generated]
        (ROOT / "torch_mtia" / "lib").mkdir(exist_ok=True)
        for header in PUBLIC_HEADERS:
            installed = ROOT / "torch_mtia" / "include" / "torch_mtia" / header
            installed.parent.mkdir(parents=True, exist_ok=True)
            self.copy_file(str(ROOT / "csrc" / header), str(installed))
        super().run()

    def build_extension(self, ext: Extension) -> None:
        """Gives each target a ninja file of its own."""
        self.build_temp = str(BUILD_TEMP / ext.name.rpartition(".")[2])
        if ext.name != EXTENSION:
            super().build_extension(ext)
            return
        ext.extra_compile_args += [f"-isystem{folder}" for folder in include_paths()]  # no warnings of PyTorch's own
        ext.extra_compile_args += ["-include", str(self.precompiled_header(ext)), "-fpch-preprocess", "-Winvalid-pch"]
        super().build_extension(ext)
        self.check_symbols(ext)

    def precompiled_header(self, ext: Extension) -> Path:
        """csrc/aten/precompiled.h, compiled with the flags of the sources, which the compiler insists on.

        Its name tells what it was made from. No object file names the headers in it as what it depends on, but with its
        name the commands change, and all that was made with it is made again.
        """
        compiler, source = shlex.split(get_cxx_compiler()), ROOT / "csrc" / "aten" / "precompiled.h"
        include_dirs = [f"-I{folder}" for folder in (*ext.include_dirs, *self.compiler.include_dirs)]
        flags = [*self.compiler.compiler_so[1:], *include_dirs, *ext.extra_compile_args]
        version = subprocess.check_output([*compiler, "--version"], text=True)
        text = "\n".join([version, torch.__version__, *flags, source.read_text()]).replace(str(ROOT), "")
        digest = hashlib.sha256(text.encode()).hexdigest()
        folder = ROOT / self.build_temp
        header = folder / f"precompiled_{digest[:16]}.h"
        if not Path(f"{header}.gch.sum").exists():
            folder.mkdir(parents=True, exist_ok=True)
            for old in folder.glob("precompiled_*"):
                old.unlink()
            header.write_text(source.read_text().replace("#pragma once\n", ""))
            self.spawn([*compiler, *flags, "-x", "c++-header", str(header), "-o", f"{header}.gch"])
            Path(f"{header}.gch.sum").write_text(digest)
        return header

    def check_symbols(self, ext: Extension) -> None:
        """Raises if nobody defines a function that is declared, as the kernel of a row: the linker leaves it open."""
        library = self.get_ext_fullpath(ext.name)
        load = f"import ctypes, os, torch; ctypes.CDLL({library!r}, os.RTLD_NOW)"
        loaded = subprocess.run([sys.executable, "-c", load], stderr=subprocess.PIPE, text=True, check=False)
        if loaded.returncode != 0:
            os.remove(library)
            sys.exit(f"error: {loaded.stderr.strip().splitlines()[-1]}")

    def get_ext_filename(self, ext_name: str) -> str:
        """The driver is a plain library, not a Python module: no ABI tag in its name."""
        if ext_name.rpartition(".")[2] == HOST_DRIVER.rpartition(".")[2]:
            return str(Path(*ext_name.split("."))) + ".so"
        return str(super().get_ext_filename(ext_name))  # type: ignore[no-untyped-call]


setup(
    version=versions["__version__"],
    install_requires=[versions["torch_requirement"]()],
    packages=find_packages(include=["torch_mtia", "torch_mtia.*", "mtia", "mtia.*"]),
    package_data={
        "torch_mtia": ["py.typed", "*.pyi", "include/**/*.h"],
        "torch_mtia.new_backend": ["package-template/**"],
        "torch_mtia.conformance": ["*.html", "*.ini", "ledgers/*.yaml"],
    },
    ext_modules=[
        Extension(
            HOST_DRIVER,
            sources("csrc/runtime/host/*.cpp", "csrc/runtime/machine_memory.cpp"),
            include_dirs=[str(ROOT / "csrc")],
            extra_compile_args=COMPILE_FLAGS,
            extra_link_args=[f"-Wl,--version-script={ROOT}/csrc/runtime/host/exports.map"],
            libraries=["dl", "pthread"],
            language="c++",
        ),
        CppExtension(
            EXTENSION,
            sources(
                "csrc/runtime/loader.cpp",
                "csrc/runtime/machine_memory.cpp",
                *(
                    f"csrc/{layer}/*.cpp"
                    for layer in ("core", "collectives", "device", "aten", "distributed", "python")
                ),
            ),
            include_dirs=[str(ROOT / "csrc"), str(ROOT / "csrc" / "aten"), str(ROOT / GENERATED)],
            # The HAVE_ macros give ATen/native/DispatchStub.h the layout that the wheel was built with. OpenMP is
            # compiled in and not linked: the symbols have to be those of the library that torch itself loaded.
            extra_compile_args=[
                *COMPILE_FLAGS,
                "-fopenmp",
                "-Wno-maybe-uninitialized",  # GCC sees it in ATen's TensorIterator, where it is not
                "-DAT_PER_OPERATOR_HEADERS",  # without, half of ATen's headers include all of its operators
                "-DHAVE_AVX512_CPU_DEFINITION",
                "-DHAVE_AVX2_CPU_DEFINITION",
            ],
            extra_link_args=[f"-Wl,-soname,{SONAME}"],
        ),
    ],
    cmdclass={"build_ext": Build},
)
