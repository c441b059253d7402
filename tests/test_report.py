"""`python -m torch_mtia` says what works, and with --verbose what a bug report needs, also when the backend does not
load."""

from __future__ import annotations

import importlib.metadata
import re
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from torch_mtia import environment

if TYPE_CHECKING:
    from tests.conftest import RunPython, RunScript

TORCH = importlib.metadata.version("torch")

SHORT = ("-m", "torch_mtia")
REPORT = (*SHORT, "--verbose")

WITHOUT = """
import importlib.metadata, os, runpy, sys
import torch

version = importlib.metadata.version
def hidden(package):
    if package == {package!r}:
        raise importlib.metadata.PackageNotFoundError(package)
    return version(package)

importlib.metadata.version = hidden
sys.argv = ["torch_mtia"]
runpy.run_module("torch_mtia", run_name="__main__")
"""


def test_the_short_report_fits_on_one_screen(run_python: RunPython) -> None:
    report = run_python(*SHORT).output()
    assert len(report.splitlines()) <= 24
    for part in (TORCH, "host", "mtia:0", "works", "Triton kernels, torch.compile", "C++ compiler", "--verbose"):
        assert part in report


@pytest.mark.parametrize(
    ("package", "extra"), [("triton", "triton"), ("llvmlite", "triton"), ("expecttest", "conformance")]
)
def test_what_is_missing_is_named_with_the_command_that_installs_it(
    package: str, extra: str, run_script: RunScript
) -> None:
    lines = run_script(WITHOUT.format(package=package)).stdout.splitlines()
    (missing,) = [line for line in lines if line.startswith("missing")]
    assert f"no {package}: pip install 'torch_mtia[{extra}]'" in missing


def test_a_machine_without_a_compiler_is_told_what_it_cannot_do(run_python: RunPython) -> None:
    (missing,) = [line for line in run_python(*SHORT, CXX="/no/compiler").output().splitlines() if "missing" in line]
    assert "C++ extensions, cpp_wrapper, AOTInductor: no C++ compiler" in missing


def test_the_short_report_shows_settings_that_are_not_the_default(run_python: RunPython) -> None:
    lines = [line.split() for line in run_python(*SHORT, TORCH_MTIA_DEVICES="2").output().splitlines()]
    assert ["TORCH_MTIA_DEVICES", "2", "(environment)"] in lines
    assert "TORCH_MTIA_MEMORY" not in {line[0] for line in lines}


def test_the_short_report_ends_with_the_reason_why_the_backend_does_not_load(run_python: RunPython) -> None:
    finished = run_python(*SHORT, TORCH_MTIA_DEVICES="abc")
    assert finished.returncode == 1
    assert "TORCH_MTIA_DEVICES='abc' is not valid" in finished.stdout.splitlines()[-1]


def test_the_report_names_versions_driver_devices_and_operators(run_python: RunPython) -> None:
    report = run_python(*REPORT, TORCH_MTIA_DEVICES="2", TORCH_MTIA_MEMORY="512M").output()
    for part in (TORCH, "host", "mtia:0", "mtia:1", "512 MiB", "native", "total", "autoload", "cores"):
        assert part in report
    for package in ("triton", "llvmlite"):
        assert re.search(rf"{package} +{re.escape(importlib.metadata.version(package))}$", report, re.MULTILINE)


def test_the_report_lists_all_settings(run_python: RunPython) -> None:
    report = run_python(*REPORT, TORCH_MTIA_SANITIZE="streams").output()
    lines = [line.split() for line in report.splitlines()]
    for variable in environment.VARIABLES:
        assert sum(line[:1] == [variable.name] for line in lines) == 1, variable.name
    assert ["TORCH_MTIA_SANITIZE", "streams", "(environment)"] in lines


def test_readme_counts_operators_as_the_report_does(run_python: RunPython) -> None:
    counts = re.findall(r"^  (?:native|composite) +(\d+)", run_python(*REPORT).output(), re.MULTILINE)
    readme = (Path(__file__).parent.parent / "README.md").read_text()
    pattern = r"with PyTorch (\S+), (\d+) have a kernel registered for the device.* and (\d+) are composed"
    ((version, *shown),) = re.findall(pattern, readme)
    assert shown == counts or not TORCH.startswith(version)


def test_the_report_says_what_is_replaced_in_other_packages(run_python: RunPython) -> None:
    report = run_python(*SHORT, "--replacements").output()
    assert "not there" not in report
    assert "skipped" not in report
    for name in (
        "torch._tensor: Tensor.new: upstream names the devices that it serves. The legacy constructor",
        "torch._inductor.utils: is_big_gpu: upstream takes every accelerator for a CUDA device. Inductor has",
    ):
        assert f"  applied                      {name}" in report


def test_the_report_counts_what_is_replaced_and_lists_it_by_reason(run_python: RunPython) -> None:
    assert re.search(r"^replaced +\d+ names of PyTorch; --replacements lists", run_python(*SHORT).output(), re.M)
    listed = run_python(*SHORT, "--verbose").output()
    assert re.search(r"^  \d+ +upstream names the devices that it serves\n +torch\.\S+: \S+$", listed, re.M)


def test_the_report_ends_in_silence_when_nobody_reads_on(run_script: RunScript) -> None:
    script = """
        import os, sys

        read, write = os.pipe()
        os.close(read)
        os.dup2(write, 1)
        os.execv(sys.executable, [sys.executable, "-m", "torch_mtia"])
    """
    finished = run_script(script)
    assert (finished.returncode, finished.stderr) == (-signal.SIGPIPE, "")


def test_the_report_works_with_autoload_off(run_python: RunPython) -> None:
    assert "off: TORCH_DEVICE_BACKEND_AUTOLOAD='0'" in run_python(*REPORT, TORCH_DEVICE_BACKEND_AUTOLOAD="0").output()


def test_the_report_shows_why_the_backend_does_not_load(run_python: RunPython) -> None:
    finished = run_python(*REPORT, TORCH_MTIA_DEVICES="abc")
    assert finished.returncode == 1
    assert "TORCH_MTIA_DEVICES='abc' is not valid" in finished.stdout
    assert TORCH in finished.stdout


def test_the_report_shows_what_memory_the_machine_and_the_container_have(run_python: RunPython, tmp_path: Path) -> None:
    meminfo = tmp_path / "root" / "proc" / "meminfo"
    meminfo.parent.mkdir(parents=True)
    meminfo.write_text("MemTotal: 3276800 kB\nMemAvailable: 307200 kB\n")
    report = run_python(*REPORT, TORCH_MTIA_SYSTEM_ROOT=str(tmp_path / "root")).output()
    for line in (
        "3.12 GiB, the machine's",
        "300 MiB, left by the machine",
        "100 MiB, which devices leave for the host",
    ):
        assert line in report


def test_the_report_counts_operators_under_any_name(run_python: RunPython) -> None:
    counts = [
        next(line for line in run_python(*REPORT, timeout=120, **settings).output().splitlines() if "  native " in line)
        for settings in ({"TORCH_MTIA_PRIVATEUSE1": ""}, {"TORCH_MTIA_PRIVATEUSE1": "acme"})
    ]
    native = [int(line.split()[1].rstrip(",")) for line in counts]
    assert native[0] > 500
    assert native[1] == native[0]
