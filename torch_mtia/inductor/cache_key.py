"""What identifies this package in the keys of Inductor's caches."""

from __future__ import annotations

from torch_mtia._versions import __version__
from torch_mtia.source_digest import source_digest
from torch_mtia.triton.architecture import architecture


def identity() -> str:
    """The package's version, the architecture, and digests of what generates code. It touches no device."""
    digests = [source_digest(package) for package in ("triton", "inductor", "upstream_gates")]
    return "-".join([__version__, architecture(), *digests])
