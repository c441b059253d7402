"""What the sanitizer has to say about one finding: for people, and as JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

PACKAGES = (str(Path(torch.__file__).parent), str(Path(__file__).parent.parent), "<frozen runpy>")


class Frame(NamedTuple):
    """A line of the program."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}"


@dataclasses.dataclass(frozen=True)
class Access:
    """An item of work that touches a tensor's memory, or the host itself."""

    operator: str
    device: int | None  # None: the host, without a stream
    stream: int | None  # torch.Stream.stream_id; 0: the default stream
    tensor: str  # dtype and sizes, or a number of bytes
    address: int
    size: int  # bytes, from the first to the last
    writes: bool
    frames: tuple[Frame, ...]  # innermost first

    def __str__(self) -> str:
        return f"{self.operator} {'writes' if self.writes else 'reads'} {self.tensor} on {self.where}"

    @property
    def where(self) -> str:
        if self.stream is None:
            return "the host"
        return f"{f'stream {self.stream}' if self.stream else 'the default stream'} of device {self.device}"

    @property
    def is_collective(self) -> bool:
        return self.operator.startswith("c10d::")


@dataclasses.dataclass
class Report:
    """One finding. `kind` is "race", "freed too early", "use after free", "uninitialized" or "leak"."""

    kind: str
    access: Access
    earlier: Access | None  # the other one of a race, which was submitted before
    memory: tuple[Frame, ...]  # where the memory was freed, or allocated if nothing has written to it
    count: int = 1  # how often it was found at these lines

    @property
    def key(self) -> tuple[object, ...]:
        """The same for findings at the same lines of the program."""
        places = [_lines(access.operator, access.frames) for access in (self.access, self.earlier) if access]
        return (self.kind, *places)

    @property
    def remedy(self) -> str:
        """What to write instead."""
        if self.kind == "uninitialized":
            return "write all of it first: torch.zeros() or fill_() in place of torch.empty(), or read less"
        if self.kind == "use after free":
            return "keep a tensor that shares the memory until the work is submitted"
        assert self.earlier is not None
        if self.kind == "freed too early":
            return (
                f"before the tensor is freed, call tensor.record_stream(stream {self.earlier.stream}), or "
                f"stream {self.access.stream}.wait_stream(stream {self.earlier.stream})"
            )
        later, earlier = self.access.stream, self.earlier.stream
        if later is None:
            return f"before it, let the host wait: synchronize() of stream {earlier}, or of an event recorded there"
        if self.earlier.is_collective:
            return f"before the later one, call wait() of what {self.earlier.operator} returned, in stream {later}"
        if self.access.is_collective:
            return f"before the collective is called, let the current stream wait: wait_stream(stream {earlier})"
        return f"before the later one, call wait_stream(stream {earlier}) of stream {later}, or wait for an event"

    def __str__(self) -> str:
        lines = [f"{_TITLES[self.kind]}{f' ({self.count} times)' if self.count > 1 else ''}", f"  {self.access}"]
        lines += _indented(self.access.frames)
        if self.earlier is not None:
            lines += [f"  {self.earlier}, submitted before", *_indented(self.earlier.frames)]
        if self.memory:
            lines += ["  the memory was allocated" if self.kind == "uninitialized" else "  the memory was freed"]
            lines += _indented(self.memory)
        return "\n".join([*lines, f"  To mend it: {self.remedy}."])

    def to_json(self, **more: object) -> str:
        """One line."""
        return json.dumps(dataclasses.asdict(self) | {"remedy": self.remedy} | more)


_TITLES = {
    "race": "Race: two pieces of work touch the same memory in no order, and one of them writes",
    "freed too early": "Freed too early: memory is used again while another stream still works on it",
    "use after free": "Use after free: work touches memory that was freed before",
    "uninitialized": "Uninitialized: work reads memory that nothing has written since it was allocated",
}


def reports_of(findings: Iterable[Mapping[str, Any]]) -> list[Report]:
    return [
        Report(
            finding["kind"],
            _access(finding["access"]),
            _access(finding["earlier"]) if "earlier" in finding else None,
            frames_of(finding["memory"]),
        )
        for finding in findings
    ]


def _access(entry: Mapping[str, Any]) -> Access:
    named = {field.name: entry[field.name] for field in dataclasses.fields(Access) if field.name != "frames"}
    return Access(**named, frames=frames_of(entry))


def frames_of(entry: Mapping[str, Any]) -> tuple[Frame, ...]:
    return tuple(Frame(frame["filename"], frame["line"], frame["name"]) for frame in entry["frames"])


def _lines(operator: str, frames: tuple[Frame, ...]) -> tuple[object, ...]:
    return (operator, *(frame[:2] for frame in frames))


def own_lines(frames: tuple[Frame, ...]) -> list[Frame]:
    """The program's own lines; those of PyTorch and of this package only where there are no others."""
    return [frame for frame in frames if not frame.file.startswith(PACKAGES)] or list(frames)


def _indented(frames: tuple[Frame, ...]) -> list[str]:
    return [f"    {frame}" for frame in own_lines(frames)] or ["    on a thread without Python code"]
