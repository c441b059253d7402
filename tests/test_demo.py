"""The demo trains the same network on both devices and finds them in agreement."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.conftest import RunScript

DEMO = Path(__file__).parent.parent / "examples" / "train_digits.py"


def test_the_demo_compares_two_devices(run_script: RunScript, tmp_path: Path) -> None:
    finished = run_script(
        f"""
        import runpy, sys
        sys.argv = ["train_digits.py", "--compare", "--epochs", "2", "--losses", "losses.json", "--output", "loss.png"]
        runpy.run_path({str(DEMO)!r}, run_name="__main__")
        """,
        timeout=300,
    )
    assert "operators that ran in the CPU fallback" in finished.output()
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")
    there, host = json.loads((tmp_path / "losses.json").read_text())
    assert (there["device"], host["device"]) == ("mtia", "cpu")
    assert len(there["losses"]) == len(host["losses"]) > 20
    assert there["losses"][-1] < there["losses"][0] / 2
    assert there["fallbacks"]
