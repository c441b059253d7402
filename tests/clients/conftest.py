"""Libraries that use PyTorch, as they are published, on the device. `make test-clients` runs them.

Models have random weights and data is made up: nothing is downloaded.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Protocol

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"


class Launch(Protocol):
    """Runs a script with torchrun, in two processes, and returns what the first of them printed."""

    def __call__(self, text: str, /, **environment: str) -> str: ...


@pytest.fixture
def launch(tmp_path: Path) -> Launch:
    def run(text: str, /, **environment: str) -> str:
        script = tmp_path / "launched.py"
        script.write_text(textwrap.dedent(text))
        launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
        process = subprocess.run(
            [sys.executable, *launcher, "--local-ranks-filter=0", str(script)],
            cwd=tmp_path,
            env=os.environ | environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=240,
        )
        assert process.returncode == 0, f"{process.stdout}\n{process.stderr}"
        return process.stdout

    return run
