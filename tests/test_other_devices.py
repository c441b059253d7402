"""Programs for other devices do what they do without this package."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from torch_mtia import torch_version, upstream_gates

pytestmark = pytest.mark.in_tree("without the package, and with it under the name mtia")

MODULES = sorted(
    {
        module
        for gate in upstream_gates.GATES
        if torch_version.TORCH in gate.versions and not gate.is_of_a_client
        for module in gate.modules
        if not module.startswith(("torch._C", "torch.mtia"))  # builtin functions, and the device's own
    }
)


def run(tmp_path: Path, autoload: str) -> dict[str, Any]:
    finished = subprocess.run(
        [sys.executable, "-m", "tests.other_devices", *MODULES],
        cwd=Path(__file__).parents[1],
        env={
            **os.environ,
            "TORCH_DEVICE_BACKEND_AUTOLOAD": autoload,
            "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / autoload),
            "PYTHONHASHSEED": "0",
        },
        stdout=subprocess.PIPE,
        text=True,
        timeout=600,
        check=True,
    )
    found: dict[str, Any] = json.loads(finished.stdout.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], dict[str, Any]]:
    """Without the package and with it."""
    folder = tmp_path_factory.mktemp("caches")
    return run(folder, "0"), run(folder, "1")


def test_programs_have_the_same_results(runs: tuple[dict[str, Any], dict[str, Any]]) -> None:
    without, with_it = (each["results"] for each in runs)
    assert with_it == without


def test_programs_call_the_same_functions(runs: tuple[dict[str, Any], dict[str, Any]]) -> None:
    without, with_it = (each["calls"] for each in runs)
    for program in without:
        differing = dict(set(with_it[program].items()) ^ set(without[program].items()))
        assert not differing, program


def test_upstreams_functions_have_the_same_bytecode(runs: tuple[dict[str, Any], dict[str, Any]]) -> None:
    """Of every module that has a replaced name, the functions that other devices run."""
    without, with_it = (each["codes"] for each in runs)
    assert len(without) > 1000
    differing = {name for name in without if with_it.get(name) != without[name]}
    assert not differing
