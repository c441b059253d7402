"""A digest of Python sources, for the keys of caches: a changed compiler must not find what the old one made."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path

ROOT = Path(__file__).resolve().parent


@functools.cache
def source_digest(package: str) -> str:
    """Of all modules of the subpackage `torch_mtia.<package>`."""
    digest = hashlib.sha256()
    folder = ROOT / package
    for path in sorted(folder.rglob("*.py")):
        digest.update(path.relative_to(folder).as_posix().encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()
