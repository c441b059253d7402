"""What a hunt has done, in a file, so that a long one can be stopped and continued."""

from __future__ import annotations

import collections
import hashlib
import json
import time
from collections.abc import Iterable
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "torch_mtia"

BETWEEN_SAVES = 5  # seconds


def digest_of_package() -> str:
    """Of what is tested: the package's Python, and its libraries."""
    digest = hashlib.sha256()
    for path in sorted(path for pattern in ("*.py", "*.so") for path in PACKAGE.rglob(pattern)):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


class Progress:
    """Counts of programs by outcome and by feature. They belong to the sources that were tested: `digest` names these.

    `path`: the file, which is read at the start and written by `save`; None for none.
    """

    def __init__(self, path: Path | None, first: int, digest: str) -> None:
        self._path = path
        self._saved = time.monotonic()
        self.next = first  # seed
        self._of_digests: dict[str, dict[str, dict[str, int]]] = {}
        if path is not None and path.exists():
            saved = json.loads(path.read_text())
            self.next, self._of_digests = saved["next"], saved["programs"]
        current = self._of_digests.setdefault(digest, {})
        self.outcomes = collections.Counter(current.get("outcomes", {}))
        self.features = collections.Counter(current.get("features", {}))
        current["outcomes"], current["features"] = self.outcomes, self.features

    def add(self, seed: int, kind: str, features: Iterable[str]) -> None:
        """A program, with the features that it has."""
        self.outcomes[kind] += 1
        self.features.update(set(features))
        self.next = seed + 1
        if time.monotonic() > self._saved + BETWEEN_SAVES:
            self.save()

    def save(self) -> None:
        self._saved = time.monotonic()
        if self._path is not None:
            self._path.write_text(json.dumps({"next": self.next, "programs": self._of_digests}, indent=1) + "\n")
