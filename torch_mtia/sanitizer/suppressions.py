"""Known reports that a review has found harmless.

A file has a line for each:

    # kind        operator       file:function       the reason, after a #
    race          aten::add      */metrics.py:log    # the value is only displayed, and may be that of another step
    use-after-free *             *:*                 # the extension keeps the memory alive by itself

Kind, operator and place are patterns of fnmatch. A place is one of the lines that the report names, of either side;
its file is compared as the report names it, and by its absolute path.
What PyTorch does on purpose is built in.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
from fnmatch import fnmatchcase
from pathlib import Path

from torch_mtia.sanitizer.report import Frame, Report


@dataclasses.dataclass
class Suppression:
    """A line of a file."""

    source: str  # the file and the line
    kind: str
    operator: str
    place: str  # file:function
    reason: str
    count: int = 0  # of what it has suppressed

    def suppresses(self, report: Report) -> bool:
        accesses = [access for access in (report.access, report.earlier) if access is not None]
        lines = (lines for access in accesses for lines in (access.frames, access.forward, access.backward))
        frames = [*itertools.chain(*lines), *report.memory]
        return (
            fnmatchcase(report.kind.replace(" ", "-"), self.kind)
            and any(fnmatchcase(access.operator, self.operator) for access in accesses)
            and (self.place == "*:*" or any(map(self._is_at, frames)))
        )

    def _is_at(self, frame: Frame) -> bool:
        files = {frame.file, os.path.abspath(frame.file)}  # a script may be called by its bare name
        return any(fnmatchcase(f"{file}:{frame.function}", self.place) for file in files)

    def __str__(self) -> str:
        if not self.count:
            return f"{self.source} suppressed nothing"
        return f"{self.source} suppressed {self.count}: {self.reason}"


BUILT_IN = """
# Stages run once on memory that nobody has filled, of the shapes that their neighbours send, to learn their own.
uninitialized * */torch/distributed/pipelining/stage.py:_forward_metadata_inference   # only the shapes of it are used
uninitialized * */torch/distributed/pipelining/stage.py:_backward_metadata_inference  # only the shapes of it are used
not-finite    * */torch/distributed/pipelining/stage.py:_forward_metadata_inference   # only the shapes of it are used
not-finite    * */torch/distributed/pipelining/stage.py:_backward_metadata_inference  # only the shapes of it are used
"""


def built_in() -> list[Suppression]:
    return _parse(BUILT_IN, "torch_mtia")


def read(path: Path) -> list[Suppression]:
    return _parse(path.read_text(), str(path))


def _parse(text: str, source_of_all: str) -> list[Suppression]:
    """Raises ValueError, with the line, for what it does not understand, and for a line without a reason."""
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        source = f"{source_of_all}:{number}"
        rule, _, reason = line.partition("#")
        fields = rule.split()
        if len(fields) != 3 or ":" not in fields[2]:
            raise ValueError(f"{source}: expected a kind, an operator and a file:function, got {rule.strip()!r}")
        if not reason.strip():
            raise ValueError(f"{source}: give the reason after a #")
        kind, operator, place = fields
        found.append(Suppression(source, kind, operator, place, reason.strip()))
    return found
