"""`python -m torch_mtia` prints what a bug report needs, also when the backend does not load."""

from __future__ import annotations

import importlib.metadata
import re
import signal
from typing import TYPE_CHECKING

from torch_mtia import environment

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import RunScript

TORCH = importlib.metadata.version("torch")

REPORT = """
import os, sys
os.execv(sys.executable, [sys.executable, "-m", "torch_mtia"])
"""


def test_the_report_names_versions_driver_devices_and_operators(run_script: RunScript) -> None:
    report = run_script(REPORT, TORCH_MTIA_DEVICES="2", TORCH_MTIA_MEMORY="512M").output()
    for part in (TORCH, "host", "mtia:0", "mtia:1", "512 MiB", "native", "total", "autoload", "cores"):
        assert part in report
    for package in ("triton", "llvmlite"):
        assert re.search(rf"{package} +{re.escape(importlib.metadata.version(package))}$", report, re.MULTILINE)


def test_the_report_lists_all_settings(run_script: RunScript) -> None:
    report = run_script(REPORT, TORCH_MTIA_SANITIZE="streams").output()
    lines = [line.split() for line in report.splitlines()]
    for variable in environment.VARIABLES:
        assert sum(line[:1] == [variable.name] for line in lines) == 1, variable.name
    assert ["TORCH_MTIA_SANITIZE", "streams", "(environment)"] in lines


def test_the_report_says_what_is_replaced_in_other_packages(run_script: RunScript) -> None:
    script = REPORT.replace('"torch_mtia"]', '"torch_mtia", "--replacements"]')
    report = run_script(script, timeout=300).output()
    assert "not there" not in report
    assert "skipped" not in report
    for name in (
        "torch._tensor: Tensor.new: The legacy constructor",
        "torch._inductor.utils: is_big_gpu: Inductor has",
    ):
        assert f"  applied                      {name}" in report


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


def test_the_report_works_with_autoload_off(run_script: RunScript) -> None:
    assert "off: TORCH_DEVICE_BACKEND_AUTOLOAD='0'" in run_script(REPORT, TORCH_DEVICE_BACKEND_AUTOLOAD="0").output()


def test_the_report_shows_why_the_backend_does_not_load(run_script: RunScript) -> None:
    finished = run_script(REPORT, TORCH_MTIA_DEVICES="abc")
    assert finished.returncode == 1
    assert "TORCH_MTIA_DEVICES='abc' is not valid" in finished.stdout
    assert TORCH in finished.stdout


def test_the_report_shows_what_memory_the_machine_and_the_container_have(run_script: RunScript, tmp_path: Path) -> None:
    meminfo = tmp_path / "root" / "proc" / "meminfo"
    meminfo.parent.mkdir(parents=True)
    meminfo.write_text("MemTotal: 3276800 kB\nMemAvailable: 307200 kB\n")
    report = run_script(REPORT, TORCH_MTIA_SYSTEM_ROOT=str(tmp_path / "root")).output()
    for line in (
        "3.12 GiB, the machine's",
        "300 MiB, left by the machine",
        "100 MiB, which devices leave for the host",
    ):
        assert line in report


def test_the_report_counts_operators_under_any_name(run_script: RunScript) -> None:
    counts = [
        next(line for line in run_script(REPORT, timeout=120, **settings).output().splitlines() if "  native " in line)
        for settings in ({"TORCH_MTIA_PRIVATEUSE1": ""}, {"TORCH_MTIA_PRIVATEUSE1": "acme"})
    ]
    native = [int(line.split()[1].rstrip(",")) for line in counts]
    assert native[0] > 500
    assert native[1] == native[0]
