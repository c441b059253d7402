"""Launches here that raise what a GPU says to them: targets(..., refuse=True), and TORCH_MTIA_REFUSE."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from triton.runtime.errors import OutOfResources

from torch_mtia import _C
from torch_mtia.gpu_targets import Target
from torch_mtia.portability import launches
from torch_mtia.portability.launches import Counter, Recording
from torch_mtia.portability.rows import COMPILES, FAILS, Row, compile_rows
from torch_mtia.portability.workers import TIMEOUT, Pool
from torch_mtia.triton.launch import Compiled

# How answers begin that are not the target's: nothing is known of the launch there.
_NOT_THE_TARGETS = ("cannot be compiled in another process", "there is no process", "the compiler", "LookupError")


class RefusedByTarget(OutOfResources):  # type: ignore[misc]
    """A target does not compile, or does not launch, a kernel that was about to be launched here. Triton's autotuner
    skips a configuration that raises it, as it skips what a GPU has no resources for."""

    def __init__(self, message: str) -> None:
        Exception.__init__(self, message)
        self.message = message

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> tuple[type, tuple[str]]:
        return type(self), (self.message,)


class RefusingRecording(Recording):
    """Compiles each kernel before its first launch, which takes seconds, and raises RefusedByTarget at every launch
    that a target refuses."""

    def __init__(self, targets: Sequence[Target], count: Counter | None = None, timeout: float = TIMEOUT) -> None:
        super().__init__(self._check)
        self.counts = count is not None
        self._count_launch, self._targets, self._timeout = count, targets, timeout
        self._refusals: dict[Compiled, str] = {}

    def observe(self, compiled: Compiled, launch: tuple[Any, ...]) -> bool:
        launched = compiled not in self._refusals and super().observe(compiled, launch)
        if message := self._refusals.get(compiled):
            _C._observe_launches(launches._observe)  # so that the next launch is observed, too
            raise RefusedByTarget(message)
        return launched

    def _check(self, compiled: Compiled, launch: tuple[Any, ...]) -> Any:
        """Called for a new specialization. Counts the launch if no target refuses it."""
        with Pool(self._timeout) as pool:
            rows = compile_rows(self.specializations[-1:], self._targets, pool)
        if refused := [text for row in rows if (text := _refusal(row))]:
            self._refusals[compiled] = "; ".join(refused)
            return None
        return self._count_launch(compiled, launch) if self._count_launch is not None else None


def _refusal(row: Row) -> str:
    """Returns what the target says, or nothing."""
    if row.status == COMPILES or (row.status == FAILS and row.message.startswith(_NOT_THE_TARGETS)):
        return ""
    where = f"{row.place[0]}:{row.place[1]}: " if row.place is not None else ""
    return f"{row.target} refuses {row.kernel}({row.title}): {where}{row.message}"
