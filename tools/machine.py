"""What a build needs of the machine. `python tools/machine.py` prints a line for each thing that is missing.

`--cuda` is for PyTorch's CUDA wheel, which needs more disk space. `--jobs` prints how many compilers fit instead.

Written for Python 3.6 and its standard library alone, because it is also what says that Python is too old.
"""

import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from importlib.util import find_spec
from typing import NamedTuple

GIB = 1 << 30
COMPILER_MEMORY = 3 * GIB // 2
"""What the largest source file takes."""

PYTHONS = (3, 10), (3, 14)
"""The oldest and the newest version for which the packages in requirements/ have wheels."""
OLDEST_GCC = 11  # for C++20
PROCESSORS = ("x86_64", "aarch64")
MEMORY = 2 * GIB
DISK, DISK_WITH_CUDA = 4 * GIB, 12 * GIB

DOCKER = "docker build --platform linux/amd64 -t torch_mtia . && docker run --rm -it torch_mtia"
ELSEWHERE = "If there is none that is newer: conda create -n mtia -c conda-forge python=3.12 cxx-compiler make"

# What installs it, by distribution; {python} is as in "python3.12".
DISTRIBUTIONS = {
    "debian": ("Debian, Ubuntu", "apt-get install"),
    "fedora": ("Fedora", "dnf install"),
    "arch": ("Arch", "pacman -S"),
    "conda": ("conda", "conda install -c conda-forge"),
}
PACKAGES = {
    "python": {"debian": "python3 python3-venv python3-dev", "fedora": "python3-devel", "arch": "python",
               "conda": "python=3.12"},
    "venv": {"debian": "{python}-venv", "fedora": "python3-libs", "arch": "python", "conda": "python"},
    "Python.h": {"debian": "{python}-dev", "fedora": "python3-devel", "arch": "python", "conda": "python"},
    "g++": {"debian": "g++", "fedora": "gcc-c++", "arch": "gcc", "conda": "cxx-compiler"},
    "make": {"debian": "make", "fedora": "make", "arch": "make", "conda": "make"},
}  # fmt: skip


class Machine(NamedTuple):
    """What the checks look at."""

    system: str  # as in platform.system()
    processor: str
    distribution: str  # a key of DISTRIBUTIONS, or "" if it is none of them
    is_root: bool
    python: "tuple[int, int]"
    has_venv: bool
    has_header: bool  # Python.h
    has_make: bool
    compiler: str  # the command; "" if there is none
    is_gcc: bool
    gcc: int  # the version that it has or imitates; 0 if it does not run
    memory: int  # bytes that are free
    disk: int


def measured() -> Machine:
    """This machine, with the interpreter that runs this."""
    command = compiler()
    is_gcc, gcc = gcc_version(command) if command else (False, 0)
    header = os.path.join(sysconfig.get_path("include"), "Python.h")
    return Machine(
        system=platform.system(),
        processor=platform.machine(),
        distribution=distribution(),
        is_root=os.geteuid() == 0,
        python=(sys.version_info[0], sys.version_info[1]),
        has_venv=all(map(find_spec, ("venv", "ensurepip"))),
        has_header=os.path.exists(header),
        has_make=shutil.which("make") is not None,
        compiler=command,
        is_gcc=is_gcc,
        gcc=gcc,
        memory=free_memory(),
        disk=shutil.disk_usage(os.path.dirname(os.path.abspath(__file__))).free,
    )


def compiler() -> str:
    """The C++ compiler of a build: $CXX, else c++ as PyTorch's builds have it, or g++ if c++ is not GCC. "" if there is
    none."""
    chosen = os.environ.get("CXX")
    if chosen:
        return chosen
    found = [name for name in ("c++", "g++") if shutil.which(name)]
    return next((name for name in found if gcc_version(name)[0]), found[0] if found else "")


def gcc_version(command: str) -> "tuple[bool, int]":
    """Whether the compiler is GCC, and the major version that it has or imitates: 0 if it does not run."""
    try:
        macros = subprocess.check_output(
            [*shlex.split(command), "-dM", "-E", "-x", "c++", os.devnull], stderr=subprocess.DEVNULL
        ).decode()
    except (OSError, subprocess.CalledProcessError):
        return False, 0
    version = re.search(r"#define __GNUC__ (\d+)", macros)
    return version is not None and "__clang__" not in macros, int(version.group(1)) if version else 0


def distribution() -> str:
    if os.path.isdir(os.path.join(sys.base_prefix, "conda-meta")):
        return "conda"
    try:
        with open("/etc/os-release") as file:
            text = file.read()
    except OSError:
        return ""
    names = " ".join(re.findall(r'^ID(?:_LIKE)?="?([^"\n]*)', text, re.MULTILINE)).split()
    return next((name for name in names if name in DISTRIBUTIONS), "")


def free_memory() -> int:
    """What is left by the machine, and by the limit of the container around the process."""
    free = []
    for line in _lines("/proc/meminfo"):
        if line.startswith("MemAvailable:"):
            free.append(int(line.split()[1]) << 10)
    for limit, used in (("memory.max", "memory.current"),
                        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes")):  # fmt: skip
        figures = _lines("/sys/fs/cgroup/" + limit) + _lines("/sys/fs/cgroup/" + used)
        if len(figures) == 2 and all(figure.isdigit() for figure in figures):
            free.append(int(figures[0]) - int(figures[1]))
    return max(0, min(free)) if free else 0


def _lines(path: str) -> "list[str]":
    try:
        with open(path) as file:
            return file.read().splitlines()
    except OSError:
        return []


def jobs(cores: int, memory: int) -> int:
    """How many compilers run at a time."""
    return max(1, min(cores, memory // COMPILER_MEMORY))


def default_jobs() -> int:
    return jobs(len(os.sched_getaffinity(0)), free_memory()) if hasattr(os, "sched_getaffinity") else 1


def problems(machine: Machine, cuda: bool = False) -> "list[str]":
    """A line for each thing that is missing: what is wrong, and what to do."""
    if machine.system != "Linux":
        return [f"torch_mtia runs on Linux, and this is {machine.system}. With Docker: {DOCKER}"]
    found = []
    if machine.processor not in PROCESSORS:
        found.append(f"The processor is {machine.processor}, and torch_mtia runs on {' and '.join(PROCESSORS)}.")
    python = as_text(machine.python)
    if not PYTHONS[0] <= machine.python <= PYTHONS[1]:
        oldest, newest = map(as_text, PYTHONS)
        found.append(
            f"This is Python {python}, and {oldest} to {newest} is needed. {install('python', machine)}, then name it: "
            f"make PYTHON=python3.12. {ELSEWHERE}"
        )
    else:
        if not machine.has_venv:
            found.append(f"Python {python} lacks venv or ensurepip. {install('venv', machine)}")
        if not machine.has_header:
            found.append(f"Python {python} lacks Python.h. {install('Python.h', machine)}")
    found += filter(None, [compiler_problem(machine)])
    if not machine.has_make:
        found.append(f"There is no make. {install('make', machine)}")
    if machine.memory < MEMORY:
        found.append(
            f"{in_gib(machine.memory)} of memory are free, and a compiler and make take {in_gib(MEMORY)}. Close "
            "programs, or give the container or the virtual machine more."
        )
    disk = DISK_WITH_CUDA if cuda else DISK
    if machine.disk < disk:
        found.append(
            f"{in_gib(machine.disk)} of disk space are free in this folder, and .venv and the build take up to "
            f"{in_gib(disk)}."
        )
    return found


def compiler_problem(machine: Machine) -> "str | None":
    """What is wrong with the C++ compiler, and what to do, or None."""
    to_install = install("g++", machine)
    if not machine.compiler:
        return f"There is no C++ compiler. {to_install}"
    if not machine.is_gcc and not machine.gcc:
        return f"The C++ compiler {machine.compiler} does not run. {to_install}, or correct CXX"
    if not machine.is_gcc:
        return f"{machine.compiler} is not GCC, which alone builds the package. {to_install}, then set CXX=g++"
    if machine.gcc < OLDEST_GCC:
        return (
            f"{machine.compiler} is GCC {machine.gcc}, and {OLDEST_GCC} or newer is needed. {to_install}, then name it "
            f"if it is not the default: CXX=g++-{OLDEST_GCC}. {ELSEWHERE}"
        )
    return None


def install(what: str, machine: Machine) -> str:
    """The command for the machine's distribution, or those of all if it is none of them."""
    commands = {}
    for name, (title, command) in DISTRIBUTIONS.items():
        sudo = "" if machine.is_root or name == "conda" else "sudo "
        packages = PACKAGES[what][name].format(python=f"python{as_text(machine.python)}")
        commands[name] = f"{title}: {sudo}{command} {packages}"
    return f"Install it ({commands.get(machine.distribution) or '; '.join(commands.values())})"


def as_text(version: "tuple[int, int]") -> str:
    return f"{version[0]}.{version[1]}"


def in_gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB"


def main() -> int:
    if "--jobs" in sys.argv:
        print(default_jobs())
        return 0
    found = problems(measured(), cuda="--cuda" in sys.argv)
    for problem in found:
        print(problem, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
