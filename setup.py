"""Builds the driver, the device's library and its bindings. Everything else about the package is in pyproject.toml."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import platform
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import setuptools
from setuptools import Extension, find_packages, setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT))  # for tools.codegen: pip runs this file without its folder on the path
versions = runpy.run_path(str(ROOT / "torch_mtia" / "_versions.py"))

if sys.platform != "linux" or platform.machine() not in ("x86_64", "aarch64"):
    sys.exit(f"error: torch_mtia runs on Linux, on x86-64 and on aarch64; this is {platform.machine()} {sys.platform}.")

MIN_SETUPTOOLS = 77  # the first that knows pyproject.toml's license expression
if int(setuptools.__version__.partition(".")[0]) < MIN_SETUPTOOLS:
    sys.exit(
        f"error: building torch_mtia needs setuptools {MIN_SETUPTOOLS} or newer; this is {setuptools.__version__}. "
        "Install what requirements/build.txt lists."
    )

os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"  # an installed older build must not load while the new one is made
if importlib.util.find_spec("torch") is None:
    # pip builds in an environment of its own. The PyTorch to build for is that of the environment it installs into,
    # which has the same interpreter.
    sys.path.append(sysconfig.get_path("platlib"))
try:
    import torch
except ImportError as error:
    sys.exit(
        f"error: torch_mtia is built for the PyTorch that is installed, and there is none: {error}. Install it first "
        f"(pip install '{versions['torch_requirement']()}'); other tools than pip need --no-build-isolation, too."
    )
if message := versions["unsupported_torch"](torch.__version__):
    sys.exit(f"error: {message}.")

# Without ninja on the PATH, as in a virtual environment that is not activated, torch compiles one file after the other.
os.environ["PATH"] = os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", "")])

# ccache, if installed, knows a precompiled header by the sum beside it: the file itself is never the same twice.
os.environ["CCACHE_SLOPPINESS"] = f"{os.environ.get('CCACHE_SLOPPINESS', '')},pch_defines,time_macros".lstrip(",")
os.environ["CCACHE_PCH_EXTSUM"] = "1"

from torch.utils.cpp_extension import BuildExtension, CppExtension, get_cxx_compiler, include_paths  # noqa: E402

from tools import build_log, machine  # noqa: E402

# What C++ extensions may include: installed under torch_mtia/include/torch_mtia, in the same folders.
PUBLIC_HEADERS = (
    "runtime/mtia_runtime.h",
    "core/WorkItem.h",
    "device/Extension.h",
    "device/Program.h",
    "aoti/shim.h",
    "aoti/wrapper.h",
    "aoti/cuda/cuda.h",
    "aoti/cuda/cuda_runtime_api.h",
)
# And others, by where they are installed under torch_mtia/include: the first two are where Inductor looks for them.
OTHER_HEADERS = {
    "torch/csrc/inductor/aoti_include/mtia.h": "csrc/aoti/inductor/aoti_include/mtia.h",
    "torch/csrc/inductor/cpp_wrapper/mtia.h": "csrc/aoti/inductor/cpp_wrapper/mtia.h",
    "torch_mtia/aoti/c_shim_mtia.h": "build/generated/c_shim_mtia.h",
}

IS_WHEEL = "TORCH_MTIA_WHEEL" in os.environ  # of make wheels

HOST_DRIVER = "torch_mtia.lib.libmtia_host"
LIBRARY = "torch_mtia.lib.libtorch_mtia"  # the device, without Python
BINDINGS = "torch_mtia._C"
GENERATED = Path("build/generated")
BUILD_TEMP = Path("build/temp")
# Lines that are compiled as one file: each file costs the compiler four seconds of templates in ATen's headers, and a
# change compiles its whole group.
GROUP_LINES = 700
# Whoever includes a header that declares all operators, or has kernels for each dtype in ten places, is compiled alone.
SLOW = re.compile(r"^#include <ATen/(ATen|autocast_mode)\.h>|(AT_DISPATCH.*?){10}", re.MULTILINE | re.DOTALL)

# no-math-errno: nobody reads errno after a mathematical function, and setting it keeps square roots from vectorizing.
# Not -mtls-dialect=gnu2, although each operator reads several thread-local variables: before 2.40, glibc's resolver
# loses vector registers at a thread's first access, and the compiler relies on them.
COMPILE_FLAGS = ["-std=c++20", "-O2", "-g0", "-fvisibility=hidden", "-Wall", "-fno-math-errno"]
if os.environ.get("DEBUG") == "1":  # for a debugger: see docs/tour.md
    COMPILE_FLAGS += ["-O0", "-g", "-DMTIA_ASSERTIONS"]
DEFINITIONS = [
    "-DAT_PER_OPERATOR_HEADERS",  # without, half of ATen's headers include all of its operators
    f'-DTORCH_MTIA_VERSION="{versions["__version__"]}"',
]

# They give ATen/native/DispatchStub.h the layout that the wheel was built with.
DISPATCH_LAYOUT = {
    "x86_64": ["-DHAVE_AVX512_CPU_DEFINITION", "-DHAVE_AVX2_CPU_DEFINITION"],
    "aarch64": ["-DHAVE_SVE_CPU_DEFINITION"],
}


def sources(*patterns: str) -> list[str]:
    return [str(path.relative_to(ROOT)) for pattern in patterns for path in sorted(ROOT.glob(pattern))]


@functools.cache  # a wheel's modules and its extensions both need them
def write_public_files() -> tuple[str, ...]:
    """Generates code, and installs in torch_mtia/ what others include and the version that the build is for. Returns
    the generated sources of the device's library."""
    from tools.codegen import kernel_abi
    from tools.codegen.generate import generate

    kernel_abi.check()
    generated = generate(ROOT / GENERATED)
    include = ROOT / "torch_mtia" / "include"
    shutil.rmtree(include, ignore_errors=True)  # what an older build has installed
    headers = {f"torch_mtia/{header}": f"csrc/{header}" for header in PUBLIC_HEADERS} | OTHER_HEADERS
    for header, path in headers.items():
        installed = include / header
        installed.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / path, installed)
    (ROOT / "torch_mtia" / "_build.py").write_text(f'TORCH = "{torch.__version__}"\n')
    return tuple(str(path.resolve().relative_to(ROOT)) for path in generated)


class BuildPython(build_py):
    """Collects the package's files when all are there: setuptools does it before it builds extensions."""

    def run(self) -> None:
        write_public_files()
        super().run()


class Build(BuildExtension):
    """Compiles, with ninja's state in one place for all ways to build."""

    def finalize_options(self) -> None:
        super().finalize_options()
        # pip gives each editable build a new temporary folder, which would forget what is up to date.
        self.build_temp = str(BUILD_TEMP)

    def run(self) -> None:
        if message := machine.compiler_problem(machine.measured()):
            sys.exit(f"error: {message}")
        if (compiler := machine.compiler()) != "c++":
            os.environ["CXX"] = compiler
        os.environ.setdefault("MAX_JOBS", str(machine.default_jobs()))
        generated = write_public_files()
        for extension in self.extensions:
            if extension.name == LIBRARY:
                extension.sources += generated
        (ROOT / "torch_mtia" / "lib").mkdir(exist_ok=True)
        super().run()

    def build_extension(self, ext: Extension) -> None:
        """Gives each target a ninja file of its own, and each source file a line."""
        self.build_temp = str(BUILD_TEMP / ext.name.rpartition(".")[2])
        if ext.name != HOST_DRIVER:
            # no warnings of PyTorch's own
            ext.extra_compile_args += [f"-isystem{folder}" for folder in include_paths()]
        with build_log.shortened():
            if ext.name == LIBRARY:
                ext.libraries.remove("torch_python")
                header = self.precompiled_header(ext)
                ext.extra_compile_args += ["-include", str(header), "-fpch-preprocess", "-Winvalid-pch"]
            if ext.name == BINDINGS:
                ext.library_dirs.append(os.path.dirname(self.get_ext_fullpath(LIBRARY)))
            ext.sources = self.grouped(ext)
            super().build_extension(ext)
        if ext.name == LIBRARY:
            self.check_symbols(ext)
        if ext.name == BINDINGS:
            self.check_state()

    def grouped(self, ext: Extension) -> list[str]:
        """Files that include the sources, several of a folder each."""
        groups: list[list[str]] = []
        last: Any = None
        lines = 0
        for source in map(str, ext.sources):
            text = Path(source).read_text()
            lines += text.count("\n")
            kind = source if SLOW.search(text) else Path(source).parent
            if kind != last or lines > GROUP_LINES:
                groups.append([])
                lines = text.count("\n")
            groups[-1].append(source)
            last = kind
        folder = Path(self.build_temp) / "groups"
        folder.mkdir(parents=True, exist_ok=True)
        written = []
        for group in groups:
            first, last = Path(group[0]), Path(group[-1])
            path = folder / f"{first.parent.name}_{'_to_'.join(dict.fromkeys((first.stem, last.stem)))}.cpp"
            text = "".join(f'#include "{self.included(ext, source)}"\n' for source in group)
            if not path.exists() or path.read_text() != text:
                path.write_text(text)
            written.append(str(path))
        return written

    @staticmethod
    def included(ext: Extension, source: str) -> Path:
        """By what name the compiler finds it."""
        path = Path(source).resolve()
        return next(path.relative_to(folder) for folder in ext.include_dirs if path.is_relative_to(folder))

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
        """Raises if nobody defines a function that is declared, as the kernel of a row: the linker leaves it open.

        Python's are not there either: programs without it load the library.
        """
        library = self.get_ext_fullpath(ext.name)
        torch_libraries = os.path.join(os.path.dirname(torch.__file__), "lib")
        environ = {**os.environ, "LD_LIBRARY_PATH": torch_libraries}
        load = f"import ctypes, os; ctypes.CDLL({library!r}, os.RTLD_NOW)"
        loaded = subprocess.run(
            [sys.executable, "-c", load], env=environ, stderr=subprocess.PIPE, text=True, check=False
        )
        if loaded.returncode != 0:
            os.remove(library)
            sys.exit(f"error: {loaded.stderr.strip().splitlines()[-1]}")

    def check_state(self) -> None:
        """Raises if a variable of a header is in both libraries: each would have its own, because neither shows it.

        And if the bindings use what the library does not export: the linker leaves that open, too.
        """

        def symbols(*options: str) -> list[tuple[str, str]]:
            listing = subprocess.check_output([os.environ.get("NM", "nm"), "-C", *options], text=True)
            found = re.findall(r"^[ 0-9a-f]* (\w) (.*)$", listing, re.MULTILINE)
            return [(kind, name) for kind, name in found if re.match(r"(\w+ for )?torch_mtia::|.*_mtia\(", name)]

        libraries = [self.get_ext_fullpath(name) for name in (LIBRARY, BINDINGS)]
        exported = {name for _, name in symbols("-D", "--defined-only", libraries[0])}
        if missing := {name for _, name in symbols("-D", "--undefined-only", libraries[1])} - exported:
            os.remove(libraries[1])
            sys.exit(f"error: the bindings use {sorted(missing)}, which csrc/device/exports.map does not list.")
        variables = [
            {name for kind, name in symbols("--defined-only", library) if kind in "bBdDuV" and " for " not in name}
            for library in libraries
        ]
        # TORCH_LIBRARY's and the like in unnamed namespaces are each library's own.
        if shared := {name for name in variables[0] & variables[1] if "(anonymous namespace)" not in name}:
            os.remove(libraries[1])
            sys.exit(f"error: a header defines {sorted(shared)}: declare it there, and define it in a source file.")

    def get_ext_filename(self, ext_name: str) -> str:
        """The driver and the device are plain libraries, not Python modules: no ABI tags in their names."""
        if ext_name.rpartition(".")[2].startswith("lib"):
            return str(Path(*ext_name.split("."))) + ".so"
        return str(super().get_ext_filename(ext_name))  # type: ignore[no-untyped-call]


# Kernels are compiled with the LLVM in llvmlite: it needs no compiler on the machine, and the one in Triton's own wheel
# cannot be used from outside.
EXTRAS = {
    "triton": [versions["triton_requirement"](torch.__version__), "llvmlite>=0.46"],
    "conformance": list(versions["CONFORMANCE"]),  # to run python -m torch_mtia.conformance
    # What lets other libraries choose the device. The sources have it; wheels leave it to a distribution of its own.
    "clients": [f"torch-mtia-clients=={versions['__version__']}"] if IS_WHEEL else [],
}


def described() -> dict[str, Any]:
    """The metadata that depend on what is made.

    A build fits the minor version of PyTorch that it was made with, the sources fit all. A wheel for others says so in
    its version (TORCH_MTIA_WHEEL, set by make wheels). What pip builds from the sources cannot: it has to have their
    version.
    """
    torch_minor = versions["minor"](torch.__version__)
    requirement = versions["torch_requirement"]() if "sdist" in sys.argv else f"torch=={torch_minor}.*"
    suffix = f"+torch{torch_minor}" if IS_WHEEL else ""
    readme = (ROOT / "README.md").read_text()
    described = {"version": versions["__version__"] + suffix, "install_requires": [requirement]}
    if url := os.environ.get("TORCH_MTIA_URL", "").rstrip("/"):
        # The page of an index shows the README, whose links are relative.
        readme = re.sub(r"\]\((?!https?:|#)", f"]({url}/blob/main/", readme)
        described["project_urls"] = {
            "Homepage": url,
            "Documentation": f"{url}/tree/main/docs",
            "Changelog": f"{url}/blob/main/CHANGELOG.md",
            "Issues": f"{url}/issues",
        }
    return described | {
        "extras_require": EXTRAS,
        "long_description": readme,
        "long_description_content_type": "text/markdown",
    }


setup(
    **described(),
    # `mtia` and `triton_mtia` have no __init__.py: other packages of these names can be beside ours.
    packages=[
        *find_packages(include=["torch_mtia", "torch_mtia.*"], exclude=["torch_mtia.clients"] if IS_WHEEL else []),
        *("mtia.host_runtime.torch_mtia", "mtia.re", "mtia.triton", "triton_mtia.python.mtia.eager"),
    ],
    package_data={
        "torch_mtia": ["py.typed", "*.pyi", "include/**/*.h"],
        "torch_mtia.new_backend": ["package-template/**"],
        "torch_mtia.conformance": ["*.html", "*.ini", "ledgers/*.yaml", "ledgers/upstream/*.yaml"],
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
            LIBRARY,
            sources(
                "csrc/runtime/forks.cpp",
                "csrc/runtime/loader.cpp",
                "csrc/runtime/machine_memory.cpp",
                *(
                    f"csrc/{layer}/*.cpp"
                    for layer in ("core", "sanitizer", "collectives", "device", "aten", "distributed", "aoti")
                ),
            ),
            depends=["csrc/device/exports.map"],
            include_dirs=[str(ROOT / "csrc"), str(ROOT / "csrc" / "aten"), str(ROOT / GENERATED)],
            # What the bindings may use is visible, and exported by name; inside of the library calls are direct. OpenMP
            # is compiled in and not linked: the symbols have to be those of the library that torch itself loaded.
            extra_compile_args=[
                *COMPILE_FLAGS,
                "-fvisibility=default",
                "-fno-semantic-interposition",
                "-fopenmp",
                "-Wno-maybe-uninitialized",  # GCC sees it in ATen's TensorIterator, where it is not
                *DEFINITIONS,
                *DISPATCH_LAYOUT[platform.machine()],
            ],
            extra_link_args=[
                "-Wl,-soname,libtorch_mtia.so",
                "-Wl,-Bsymbolic",
                f"-Wl,--version-script={ROOT}/csrc/device/exports.map",
                "-Wl,-rpath,$ORIGIN/../../torch/lib",
            ],
        ),
        CppExtension(
            BINDINGS,
            sources("csrc/python/*.cpp"),
            include_dirs=[str(ROOT / "csrc"), str(ROOT / "csrc" / "aten"), str(ROOT / GENERATED)],
            extra_compile_args=[*COMPILE_FLAGS, *DEFINITIONS],
            libraries=["torch_mtia"],
            extra_link_args=["-Wl,-rpath,$ORIGIN/lib"],
        ),
    ],
    cmdclass={"build_ext": Build, "build_py": BuildPython},
)
