"""The command `python -m torch_mtia.conformance`, for tests of what it reports."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from torch_mtia.conformance.__main__ import AS_EXPECTED, UNEXPECTED
from torch_mtia.conformance.results import Run


def conformance(folder: Path, *arguments: str, **environment: str) -> tuple[Run, str]:
    """Its results and what it printed, of one worker process. Raises AssertionError if the command does not run."""
    command = [sys.executable, "-m", "torch_mtia.conformance", "--folder", str(folder), "-j", "1"]
    process = subprocess.run(
        [*command, "--json", str(folder / "run.json"), *arguments],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=1200,
    )
    printed = process.stdout + process.stderr[-4000:]
    assert process.returncode in (AS_EXPECTED, UNEXPECTED), printed
    return Run.load(folder / "run.json"), printed
