"""Which kernels are launched on mtia, and in which specializations: what a recording knows of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from torch_mtia import _C
from torch_mtia.triton import same_code
from torch_mtia.triton.compiler import refusal_observers
from torch_mtia.triton.launch import Compiled

if TYPE_CHECKING:
    from torch_mtia.portability.counting import Counts

# Options that mean mtia, or that every launch gives.
_OWN_OPTIONS = ("arch", "debug", "instrumentation_mode", "ir_override", "sanitize_overflow")
_MAX_RANGE = (1 << 31) - 1  # bytes of a tensor of which AMD's backend makes buffer operations

Counter: TypeAlias = "Callable[[Compiled, tuple[Any, ...]], Counts | None]"


@dataclasses.dataclass(eq=False)
class Specialization:
    """A kernel with everything that Triton compiles it for."""

    compiled: Compiled
    grid: tuple[int, int, int]  # of the first launch
    short: tuple[int, ...]  # positions of the tensors of less than 2 GiB
    counts: Counts | None = None  # of the first launch, if it was counted

    @property
    def source(self) -> Any:
        return self.compiled.source

    @property
    def options(self) -> dict[str, Any]:
        """Returns those that the launch gave, and `debug`, which Triton adds."""
        metadata = self.compiled.metadata
        names = [name for name in metadata.given if name not in _OWN_OPTIONS and hasattr(metadata, name)]
        return {"debug": metadata.debug, **{name: getattr(metadata, name) for name in names}}


class Recording:
    """The kernels that are launched from start() to stop()."""

    def __init__(self, count: Counter | None = None) -> None:
        """`count`: launches a kernel in another way, and returns what it counted."""
        self.specializations: list[Specialization] = []
        self.generated = 0  # specializations that Inductor, or this package, wrote for mtia
        self.without_source: list[str] = []  # names of kernels that were not compiled from Python
        self.refused: list[tuple[str, int, str]] = []  # file, line and reason of kernels that mtia does not compile
        self.counts = count is not None
        self._count = count
        self._seen: set[Compiled] = set()

    def start(self) -> None:
        _recordings.append(self)
        same_code.observers.add(self)
        refusal_observers.append(self.refuse)
        _C._observe_launches(_observe)

    def stop(self) -> None:
        _recordings.remove(self)
        same_code.observers.discard(self)
        refusal_observers.remove(self.refuse)
        if not _recordings:
            _C._observe_launches(None)

    def refuse(self, file: str, line: int, reason: str) -> None:
        """Records a kernel that is not launched."""
        self.refused.append((file, line, reason))

    def observe(self, compiled: Compiled, launch: tuple[Any, ...]) -> bool:
        """Records a launch. Returns whether it launched the kernel, to count."""
        if compiled in self._seen:
            return False
        self._seen.add(compiled)
        fn = getattr(compiled.source, "fn", None)
        if fn is None:
            self.without_source.append(compiled.metadata.name)
            return False
        if _is_generated(fn):
            self.generated += 1
            return False
        short = tuple(place for place, value in enumerate(launch[_FIRST_ARGUMENT:]) if _is_short(value))
        new = Specialization(compiled, launch[:3], short)
        self.specializations.append(new)
        if self._count is None:
            return False
        new.counts = self._count(compiled, launch)
        return new.counts is not None


_FIRST_ARGUMENT = 5  # after the grid, the stream and the kernel
_recordings: list[Recording] = []


def _observe(compiled: Compiled, *launch: Any) -> bool:
    """Called for the first launch of each kernel since a recording was started."""
    launched = False
    for recording in _recordings:
        launched = recording.observe(compiled, launch) or launched
    return launched


def _is_generated(fn: Any) -> bool:
    """Whether Inductor wrote it, or this package: such kernels have block sizes for mtia."""
    heuristics = fn.__globals__.get("triton_heuristics")
    if getattr(heuristics, "__name__", "").startswith("torch._inductor."):
        return True
    return str(fn.__module__).startswith("torch_mtia.")


def _is_short(value: Any) -> bool:
    """Whether AMD's backend specializes a pointer on it."""
    if hasattr(value, "ptr_range"):
        return bool(value.ptr_range() <= _MAX_RANGE)
    return hasattr(value, "untyped_storage") and bool(value.untyped_storage().size() <= _MAX_RANGE)
