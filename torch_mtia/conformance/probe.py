"""Starts the device in a process of its own, because it may crash.

`python -m torch_mtia.conformance.probe DEVICE [MODULE...]` is that process.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence

import torch

from torch_mtia.conformance.coverage import functions_for
from torch_mtia.conformance.settings import UsageError, open_device

TIMEOUT = 300


def probe(name: str, imports: Sequence[str]) -> dict[str, str]:
    """Returns the device's full name, its properties, and the functions for it. Raises UsageError if it does not
    start."""
    command = [sys.executable, "-m", "torch_mtia.conformance.probe", name, *imports]
    try:
        process = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        raise UsageError(f"--device {name}: the device did not start in {TIMEOUT} s.") from None
    if process.returncode == 0:
        answer: dict[str, str] = json.loads(process.stdout.splitlines()[-1])
        return answer
    if process.returncode == 1 and process.stdout:
        raise UsageError(process.stdout.strip())
    raise UsageError(
        f"--device {name}: the process that started the device ended with status {process.returncode}:\n"
        f"{process.stderr[-2000:]}"
    )


def main() -> int:
    name, *imports = sys.argv[1:]
    try:
        device = open_device(name, tuple(imports))
    except UsageError as error:
        print(error)
        return 1
    properties = "the CPU"
    if device.type != "cpu":
        module = torch.get_device_module(device)
        properties = str(module.get_device_properties(0)) if hasattr(module, "get_device_properties") else "unknown"
        properties = re.sub(r" at 0x[0-9a-f]+", "", properties)  # of this process only
    described = {"device": str(device), "type": device.type, "properties": properties}
    print(json.dumps(described | {"functions": " ".join(functions_for(device))}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
