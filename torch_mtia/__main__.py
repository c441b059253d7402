"""`python -m torch_mtia`: what is installed and what works with it, on one screen. With --verbose, what a bug report
needs. Both work, as far as they can, when the backend does not load."""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import os
import platform
import shlex
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch_mtia
from torch_mtia import environment

# The dispatch keys of kernels that are made of other operators.
KEYS_OF_COMPOSITES = (
    "CompositeImplicitAutograd",
    "CompositeExplicitAutograd",
    "CompositeExplicitAutogradNonFunctional",
)

Rows = Iterator[tuple[str, str]]

# What works with which packages beside PyTorch, and what installs them.
FEATURES = (
    ("tensors, autograd, streams, graphs, torch.distributed", (), ""),
    ("Triton kernels, torch.compile", ("triton", "llvmlite"), "pip install 'torch_mtia[triton]'"),
    ("the conformance suite", ("pytest", "pytest-xdist", "expecttest"), "pip install 'torch_mtia[conformance]'"),
)
FEATURES_OF_COMPILERS = "C++ extensions, cpp_wrapper, AOTInductor"


def versions() -> Rows:
    yield "torch_mtia", f"{torch_mtia.__version__} in {Path(torch_mtia.__file__).parent}"
    for package in ("torch", "triton", "llvmlite"):
        yield package, _version(package) or "not installed"
    yield "C++ compiler", _compiler() or "none"
    yield "Python", f"{platform.python_version()} at {sys.executable}"
    yield "system", platform.platform()
    yield "CPU", _cpu_model()
    yield "cores", f"{len(os.sched_getaffinity(0))} usable of {os.cpu_count()}"


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _compiler() -> str | None:
    """Returns the first line of what the C++ compiler says of itself: that of $CXX, or c++ or g++, as PyTorch looks for
    it."""
    for command in [os.environ["CXX"]] if os.environ.get("CXX") else ["c++", "g++"]:
        try:
            text = subprocess.check_output([*shlex.split(command), "--version"], stderr=subprocess.DEVNULL, text=True)
        except (OSError, subprocess.CalledProcessError):
            continue
        return text.partition("\n")[0]
    return None


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        label, _, value = line.partition(":")
        if label.strip() == "model name":
            return value.strip()
    return platform.machine()


def autoload() -> Rows:
    entry_points = importlib.metadata.entry_points(group="torch.backends")
    switch = os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD")
    yield "state", "on" if switch in (None, "1") else f"off: TORCH_DEVICE_BACKEND_AUTOLOAD={switch!r}"
    listing = ", ".join(f"{entry.name} = {entry.value}" for entry in entry_points)
    yield "entry points", listing or "none: torch_mtia is not installed, `import torch` will not load it"
    if other := torch_mtia._other():
        yield "beside", f"{other}: `import torch` loads this device only with {environment.AUTOLOAD.name}=1"
    yield "backend", "did not load, see below" if torch_mtia._load_error else "loaded"


def settings() -> Rows:
    values, problems = environment.parse(os.environ)
    for variable in environment.VARIABLES:
        value = _shown(getattr(values, variable.field))
        if variable is environment.MEMORY and values.memory is not None:
            value = _bytes(values.memory)
        yield variable.name, f"{value} ({'environment' if variable.name in os.environ else 'default'})"
    for problem in problems:
        yield "not valid", problem


def _shown(value: object) -> str:
    if value is None:
        return "auto"
    if isinstance(value, bool):
        return str(int(value))
    return (",".join(sorted(value)) if isinstance(value, frozenset) else str(value)) or "nothing"


def driver() -> Rows:
    from torch_mtia import _C

    info = _C._driver_info()
    yield "driver", f"{info['name']} {info['version']}, ABI {info['abi_version']}"
    yield "library", str(environment.settings().runtime)
    yield "capabilities", ", ".join(info["capabilities"]) or "none"


def memory() -> Rows:
    from torch_mtia import _C

    figures = _C._machine_memory()
    total = "the lowest limit of the containers around the process" if figures["has_limit"] else "the machine's"
    available = "left by a container's limit" if figures["container"] else "left by the machine"
    yield "total", f"{_bytes(figures['total'])}, {total}"
    yield "available", f"{_bytes(figures['available'])}, {available}"
    yield "reserve", f"{_bytes(figures['reserve'])}, which devices leave for the host"


def devices() -> Rows:
    import torch

    from torch_mtia.backend import device_module, device_type

    yield "count", str(device_module().device_count())
    for index in range(device_module().device_count()):
        properties = device_module().get_device_properties(index)
        free, total = torch.accelerator.get_memory_info(index)
        yield (
            f"{device_type()}:{index}",
            f"{properties['name']}, {properties['multi_processor_count']} cores, "
            f"{_bytes(free)} of {_bytes(total)} free",
        )


def works() -> Rows:
    """What can be used here, and what is missing for the rest."""
    for feature, packages, remedy in FEATURES:
        missing = [package for package in packages if not _version(package)]
        yield (("missing", f"{feature}: no {' and no '.join(missing)}: {remedy}") if missing else ("works", feature))
    if _compiler():
        yield "works", FEATURES_OF_COMPILERS
    else:
        yield "missing", f"{FEATURES_OF_COMPILERS}: no C++ compiler (g++)"


def changed_settings() -> Rows:
    """Those that the environment sets, and what is wrong with them."""
    for label, value in settings():
        if label == "not valid" or label in os.environ:
            yield label, value


def replaced() -> Rows:
    """How many names in PyTorch and in other libraries are replaced in a process that has imported only torch."""
    made = [each for each in torch_mtia.replacements() if not each.skipped]
    yield "replaced", f"{len(made)} names of PyTorch; --replacements lists what others are, and docs/replacements.md"
    yield from _skipped()


def replacements() -> Rows:
    """What is replaced in a process that has imported only torch, by reason."""
    from torch_mtia.upstream_gates import Reason

    for reason in Reason:
        names = [f"{each.module}: {each.name}" for each in torch_mtia.replacements() if each.reason is reason]
        if names:
            yield str(len(names)), reason.value
            yield from (("", name) for name in names)
    yield from _skipped()


def _skipped() -> Rows:
    for each in torch_mtia.replacements():
        if each.skipped:
            yield "skipped", f"{each.module}: {each.name}: {each.skipped}"


def all_replacements() -> Rows:
    """Each of them, after an import of all the modules in question that are installed."""
    from torch_mtia import torch_version, upstream_gates

    for gate in upstream_gates.GATES:
        if torch_version.TORCH not in gate.versions:
            continue
        for module in gate.modules:
            try:
                for name in filter(None, (gate.filled_by, module)):
                    importlib.import_module(name)
            except ImportError:
                state = "not installed"
            else:
                is_applied = (module, gate.name) in upstream_gates.originals
                state = "applied" if is_applied else upstream_gates.skipped.get((module, gate.name), "not there")
            yield state, f"{module}: {gate.name}: {gate.reason.value}. {gate.why}"


def operators() -> Rows:
    import torch

    from torch_mtia.backend import device_type

    key = torch._C._dispatch_key_for_device(device_type())
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    names = [
        name
        for name in torch._C._dispatch_get_all_op_names()
        if name.startswith("aten::") and any(has_kernel(name, key) for key in ("CPU", *KEYS_OF_COMPOSITES))
    ]
    others = [name for name in names if not has_kernel(name, key)]
    composite = sum(any(has_kernel(name, key) for key in KEYS_OF_COMPOSITES) for name in others)
    yield "native", f"{len(names) - len(others)}, with kernels for the device"
    yield "composite", f"{composite}, made of other operators"
    yield "total", f"{len(names)}; the rest fall back to the CPU's kernels"


def _bytes(size: int) -> str:
    return f"{size / (1 << 30):.2f} GiB" if size >= 1 << 30 else f"{size / (1 << 20):.0f} MiB"


Section = Callable[[], Rows]

SHORT: tuple[Section, ...] = (versions, changed_settings)
SHORT_OF_LOADED: tuple[Section, ...] = (driver, devices, works, replaced)
VERBOSE: tuple[Section, ...] = (versions, autoload, settings)
VERBOSE_OF_LOADED: tuple[Section, ...] = (driver, memory, devices, works, operators, replacements)


def main() -> int:
    parser = argparse.ArgumentParser("python -m torch_mtia", description=__doc__)
    parser.add_argument("--verbose", action="store_true", help="also settings, memory, operators and replacements")
    parser.add_argument(
        "--replacements",
        action="store_true",
        help="--verbose, and import and list everything that is replaced in other packages",
    )
    options = parser.parse_args()
    is_verbose = options.verbose or options.replacements
    sections: Sequence[Section] = VERBOSE if is_verbose else SHORT
    if not torch_mtia._load_error:
        sections = [*sections, *(VERBOSE_OF_LOADED if is_verbose else SHORT_OF_LOADED)]
        if options.replacements:
            sections.append(all_replacements)
    for section in sections:
        _print(section, is_verbose)
    if torch_mtia._load_error is None:
        if not is_verbose:
            print("`python -m torch_mtia --verbose` says more: what a bug report needs.")
        return 0
    print("The backend did not load:")
    if is_verbose:
        traceback.print_exception(torch_mtia._load_error, file=sys.stdout)
    else:
        print(f"{type(torch_mtia._load_error).__name__}: {torch_mtia._load_error}")
    return 1


def _print(section: Section, with_heading: bool) -> None:
    """Rows that are found before one raises are shown, and then what it raised."""
    if with_heading:
        print(section.__name__.replace("_", " "))
    indentation, width = ("  ", 28) if with_heading else ("", 14)
    try:
        for label, value in section():
            print(f"{indentation}{label:<{width}} {value}")
    except Exception as error:
        print(f"{indentation}not available: {type(error).__name__}: {error}")
    if with_heading:
        print()


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # as in `python -m torch_mtia | head`
    sys.exit(main())
