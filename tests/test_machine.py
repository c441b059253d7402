"""Before anything is downloaded, `make` says what the machine lacks, in one line each. The machine here is invented."""

from __future__ import annotations

import ast
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from tools import machine
from tools.machine import GIB, Machine

SOUND = Machine(
    system="Linux",
    processor="x86_64",
    distribution="debian",
    is_root=True,
    python=(3, 12),
    has_venv=True,
    has_header=True,
    has_make=True,
    compiler="c++",
    is_gcc=True,
    gcc=13,
    memory=8 * GIB,
    disk=20 * GIB,
)

FAULTS: list[tuple[dict[str, Any], str]] = [
    ({"processor": "riscv64"}, "The processor is riscv64"),
    ({"python": (3, 9)}, "This is Python 3.9, and 3.10 to 3.14 is needed"),
    ({"python": (3, 15)}, "This is Python 3.15, and 3.10 to 3.14 is needed"),
    ({"has_venv": False}, "apt-get install python3.12-venv"),
    ({"has_header": False}, "apt-get install python3.12-dev"),
    ({"compiler": ""}, "There is no C++ compiler. Install it (Debian, Ubuntu: apt-get install g++)"),
    ({"compiler": "g++-99", "is_gcc": False, "gcc": 0}, "The C++ compiler g++-99 does not run"),
    ({"compiler": "clang++", "is_gcc": False, "gcc": 4}, "clang++ is not GCC, which alone builds the package"),
    ({"gcc": 10}, "c++ is GCC 10, and 11 or newer is needed"),
    ({"has_make": False}, "apt-get install make"),
    ({"memory": GIB}, "1.0 GiB of memory are free"),
    ({"disk": 3 * GIB}, "3.0 GiB of disk space are free"),
]


def test_a_sound_machine_lacks_nothing() -> None:
    assert machine.problems(SOUND) == []


@pytest.mark.parametrize(("fault", "line"), FAULTS, ids=[line for _, line in FAULTS])
def test_each_fault_is_one_line_that_says_what_to_do(fault: dict[str, Any], line: str) -> None:
    (problem,) = machine.problems(SOUND._replace(**fault))
    assert line in problem
    assert "\n" not in problem


def test_all_faults_are_shown_at_once() -> None:
    everything = SOUND._replace(has_venv=False, has_header=False, has_make=False, gcc=9, memory=0, disk=0)
    assert len(machine.problems(everything)) == 6


@pytest.mark.parametrize("system", ["Darwin", "Windows", "FreeBSD"])
def test_other_systems_are_shown_the_way_through_docker(system: str) -> None:
    (problem,) = machine.problems(SOUND._replace(system=system, has_header=False, processor="arm64"))
    assert f"this is {system}" in problem
    assert "docker build" in problem


@pytest.mark.parametrize(
    ("distribution", "command"),
    [
        ("debian", "(Debian, Ubuntu: sudo apt-get install g++)"),
        ("fedora", "(Fedora: sudo dnf install gcc-c++)"),
        ("arch", "(Arch: sudo pacman -S gcc)"),
        ("conda", "(conda: conda install -c conda-forge cxx-compiler)"),
    ],
)
def test_a_distribution_is_shown_its_own_command(distribution: str, command: str) -> None:
    (problem,) = machine.problems(SOUND._replace(distribution=distribution, compiler="", is_root=False))
    assert command in problem


def test_an_unknown_distribution_is_shown_all_commands() -> None:
    (problem,) = machine.problems(SOUND._replace(distribution="", compiler=""))
    for command in ("apt-get install g++", "dnf install gcc-c++", "pacman -S gcc", "conda-forge cxx-compiler"):
        assert command in problem


def test_pytorch_with_cuda_needs_more_disk_space() -> None:
    assert machine.problems(SOUND._replace(disk=6 * GIB)) == []
    assert len(machine.problems(SOUND._replace(disk=6 * GIB), cuda=True)) == 1


@pytest.mark.parametrize(
    ("cores", "memory", "jobs"), [(16, 64 * GIB, 16), (16, 6 * GIB, 4), (2, 64 * GIB, 2), (8, 0, 1)]
)
def test_compilers_are_as_many_as_cores_and_memory_allow(cores: int, memory: int, jobs: int) -> None:
    assert machine.jobs(cores, memory) == jobs


def pretend(folder: Path, name: str, macros: str) -> None:
    """A compiler of this name, which says these macros."""
    program = folder / name
    program.write_text("#!/bin/sh\n" + "".join(f"echo '#define {macro}'\n" for macro in macros.split(",")))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)


def test_the_compiler_is_the_first_that_is_gcc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/bin-without-compilers")
    monkeypatch.delenv("CXX", raising=False)
    assert machine.compiler() == ""
    pretend(tmp_path, "c++", "__GNUC__ 4,__clang__ 1")
    assert machine.compiler() == "c++"
    pretend(tmp_path, "g++", "__GNUC__ 12")
    assert machine.compiler() == "g++"
    pretend(tmp_path, "c++", "__GNUC__ 13")
    assert machine.compiler() == "c++"
    monkeypatch.setenv("CXX", "g++ -pipe")
    assert machine.compiler() == "g++ -pipe"
    assert machine.gcc_version("g++ -pipe") == (True, 12)


def test_the_checks_run_on_pythons_that_are_too_old() -> None:
    ast.parse(Path(machine.__file__).read_text(), feature_version=(3, 6))
