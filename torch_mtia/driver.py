"""Which driver the process uses."""

from __future__ import annotations

import os
from pathlib import Path

from torch_mtia import _C, environment


def configure(settings: environment.Settings) -> None:
    """Hands the settings on. The last ones before the first use of a device count; then it raises RuntimeError."""
    _C._configure(
        str(settings.runtime),
        settings.devices,
        settings.memory or 0,
        settings.launch_blocking,
        settings.delay,
        settings.poison,
        "launch" in settings.log,
    )


def use(library: Path) -> None:
    """Makes the library the driver of this process and of those that it starts, unless TORCH_MTIA_RUNTIME names one.

    Raises ValueError if there is no such file, and RuntimeError if a driver is in use.
    """
    if os.environ.get(environment.RUNTIME.name):
        return
    settings = environment.read(os.environ | {environment.RUNTIME.name: str(library)})
    configure(settings)
    os.environ[environment.RUNTIME.name] = str(library)
    environment.settings.cache_clear()
