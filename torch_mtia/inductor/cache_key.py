"""What identifies this package in the keys of Inductor's caches."""

from __future__ import annotations

import functools
import hashlib
import os
from pathlib import Path

from torch_mtia import _C, environment
from torch_mtia._versions import __version__
from torch_mtia.source_digest import source_digest
from torch_mtia.triton.architecture import architecture


def identity() -> str:
    """Returns the package's version, the architecture, the cores, the driver, and digests of what generates code. It
    touches no device: the cores are those that the process may use, as which the software device counts them."""
    digests = [source_digest(package) for package in ("triton", "inductor", "upstream_gates")]
    cores = f"{len(os.sched_getaffinity(0))} cores"
    return "-".join([__version__, architecture(), cores, _driver(environment.settings().runtime), *digests])


@functools.cache
def _driver(library: Path) -> str:
    """Returns a digest of the library, whose path says nothing about its build, and of what the driver says it can do,
    which may depend on the machine."""
    digest = hashlib.sha256()
    try:
        digest.update(library.read_bytes())
        digest.update(repr(_C._driver_info()).encode())
    except (OSError, RuntimeError):  # it raises this at the first use of a device
        return "no driver"
    return digest.hexdigest()
