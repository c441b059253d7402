"""`python -m torch_mtia` prints what a bug report needs, also when the backend does not load."""

from __future__ import annotations

import importlib.metadata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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


def test_the_report_works_with_autoload_off(run_script: RunScript) -> None:
    assert "off: TORCH_DEVICE_BACKEND_AUTOLOAD='0'" in run_script(REPORT, TORCH_DEVICE_BACKEND_AUTOLOAD="0").output()


def test_the_report_shows_why_the_backend_does_not_load(run_script: RunScript) -> None:
    finished = run_script(REPORT, TORCH_MTIA_DEVICES="abc")
    assert finished.returncode == 1
    assert "TORCH_MTIA_DEVICES='abc' is not valid" in finished.stdout
    assert TORCH in finished.stdout
