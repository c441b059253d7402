"""A digest of Python sources, for the keys of caches: a changed compiler must not find what the old one made."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path

ROOT = Path(__file__).resolve().parent


@functools.cache
def source_digest(package: str) -> str:
    """Of all modules of the subpackage `torch_mtia.<package>`, and of those beside it: torch_version.py decides too."""
    digest = hashlib.sha256()
    for path in sorted([*ROOT.glob("*.py"), *(ROOT / package).rglob("*.py")]):
        digest.update(path.relative_to(ROOT).as_posix().encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()
