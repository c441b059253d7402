"""What the sanitizer has to say about one finding: for people, and as JSON."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from torch_mtia.door import device_type
from torch_mtia.sanitizer import replaced_numbers

_TRITON = importlib.util.find_spec("triton")
PACKAGES = (
    str(Path(torch.__file__).parent),
    str(Path(__file__).parent.parent),
    *([str(Path(_TRITON.origin).parent)] if _TRITON is not None and _TRITON.origin is not None else []),
    "<frozen runpy>",
)


class Frame(NamedTuple):
    """A line of the program: its file, the number and the function."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}"


class KernelLine(NamedTuple):
    """A line of a kernel that accesses memory."""

    file: str
    line: int
    argument: str  # through which pointer; "": it is not known

    def __str__(self) -> str:
        return f"{self.file}:{self.line}{f', through argument {self.argument}' if self.argument else ''}"


@dataclasses.dataclass(frozen=True)
class Access:
    """A work item's access to a tensor's memory.

    Attributes:
        operator: such as "aten::mm", or the name of a kernel.
        device: the device's index; None for the host.
        stream: `torch.Stream.stream_id`, 0 for the default stream; None for the host.
        tensor: dtype and sizes, or a number of bytes.
        address: of the first byte.
        size: bytes, from the first to the last.
        writes: whether it writes.
        is_collective: whether the operator is a collective.
        line: of a Triton kernel, its line.
        program: of a Triton kernel, the program id where it matters.
        frames: where the work was submitted, innermost first.
        node: of the work of `backward()`, the autograd node.
        forward: of the work of `backward()`, where the operator of the forward was called.
        backward: of the work of `backward()`, where `backward()` was called.
    """

    operator: str
    device: int | None
    stream: int | None
    tensor: str
    address: int
    size: int
    writes: bool
    is_collective: bool = False
    line: KernelLine | None = None
    program: tuple[int, int, int] | None = None
    frames: tuple[Frame, ...] = ()
    node: str = ""
    forward: tuple[Frame, ...] = ()
    backward: tuple[Frame, ...] = ()

    def __str__(self) -> str:
        program = f"program {self.program} of " if self.program else ""
        return f"{program}{self.operator} {'writes' if self.writes else 'reads'} {self.tensor} on {self.where}"

    @property
    def where(self) -> str:
        if self.stream is None:
            return "the host"
        return f"{f'stream {self.stream}' if self.stream else 'the default stream'} of device {self.device}"

    @property
    def expression(self) -> tuple[str, str]:
        """The stream as Python, and where that is not enough, what the name in it stands for."""
        if self.stream == 0:
            return f"torch.{device_type()}.default_stream({self.device or ''})", ""
        return "earlier", f", where earlier is {self.where}"

    @property
    def place(self) -> tuple[object, ...]:
        """The same for what was done at the same lines of the program."""
        frames = (*own_lines(self.frames), None, *own_lines(self.forward), None, *own_lines(self.backward))
        return (self.operator, self.line, self.node, *(frame and frame[:2] for frame in frames))

    def lines(self) -> list[str]:
        """Of text: where it is done."""
        lines = [f"    {self.line}"] if self.line else []
        if self.frames or not self.node:
            lines += _indented(self.frames)
        if self.node:
            lines.append(f"    in {self.node} of backward(){', called at' if self.backward else ''}")
            lines += [f"  {line}" for line in _indented(self.backward) if self.backward]
        if self.forward:
            lines += ["    of the operator called at", *(f"  {line}" for line in _indented(self.forward))]
        return lines


@dataclasses.dataclass
class Report:
    """A finding. `str()` of it is the text that is printed.

    Attributes:
        kind: "race", "freed too early", "use after free", "uninitialized", "out of bounds", "race between programs",
            "several values", "not finite" or "leak".
        access: the access at fault; of a race, the later one.
        earlier: of a race, the access submitted earlier; of a Triton kernel's values that are not finite, the store.
        memory: where the memory was freed; where it was allocated, if it is uninitialized or the access leaves it.
        bounds: address and bytes of the tensor that the access leaves.
        nan: how many values of the access are NaN.
        infinite: how many values of the access are infinite.
        reads_infinite: whether some inputs are infinite, and none is NaN.
        count: how often it was found at these lines.
    """

    kind: str
    access: Access
    earlier: Access | None
    memory: tuple[Frame, ...]
    bounds: tuple[int, int] | None = None
    nan: int = 0
    infinite: int = 0
    reads_infinite: bool = False
    count: int = 1

    @property
    def key(self) -> tuple[object, ...]:
        """The same for findings at the same lines of the program."""
        return (self.kind, *(access.place for access in (self.access, self.earlier) if access))

    @property
    def remedy(self) -> str:
        """What to write instead."""
        if self.kind in _REMEDIES:
            return _REMEDIES[self.kind]
        assert self.earlier is not None
        earlier, where = self.earlier.expression
        waits = f"torch.{device_type()}.current_stream({self.access.device or ''}).wait_stream({earlier})"
        if self.kind == "freed too early":
            return f"before the tensor is freed, call tensor.record_stream({earlier}), or {waits}{where}"
        if self.access.stream is None:
            return f"before it, let the host wait: {earlier}.synchronize(){where}, or that of an event recorded there"
        if self.earlier.is_collective:
            there = "" if self.access.is_collective else f", in stream {self.access.stream}"
            return f"before the later one, call wait() of what {self.earlier.operator} returned{there}"
        if self.access.is_collective:
            return f"before the collective is called, call {waits}{where}"
        return f"before the later one, call {waits}{where}, or wait for an event"

    def __str__(self) -> str:
        lines = [f"{_TITLES[self.kind]}{f' ({self.count} times)' if self.count > 1 else ''}", f"  {self.access}"]
        lines += self.access.lines()
        if self.kind == "not finite":
            if self.earlier is not None:
                lines.append(f"  stored at {self.earlier.line}")
            reads = "is infinite in part, and nowhere NaN" if self.reads_infinite else "is finite"
            lines += [f"  of the result {' and '.join(self._numbers())}; what it reads {reads}"]
        elif self.kind == "race between programs":  # of one launch
            assert self.earlier is not None
            lines += [f"  {self.earlier}, of the same launch", f"    {self.earlier.line}"]
        elif self.earlier is not None:
            lines += [f"  {self.earlier}, submitted before", *self.earlier.lines()]
        if self.bounds is not None:
            lines.append(f"  {_distance(self.access, *self.bounds)}")
        if self.memory:
            if self.kind == "out of bounds":
                lines.append("  the tensor was allocated")
            else:
                lines += ["  the memory was allocated" if self.kind == "uninitialized" else "  the memory was freed"]
            lines += _indented(self.memory)
        return "\n".join([*lines, f"  To fix it: {self.remedy}."])

    def _numbers(self) -> list[str]:
        counts = ((self.nan, "NaN"), (self.infinite, "infinite"))
        return [f"{count} {'are' if count > 1 else 'is'} {name}" for count, name in counts if count]

    def to_json(self, **more: object) -> str:
        """One line."""
        return json.dumps(dataclasses.asdict(self) | {"remedy": self.remedy} | more)


_REMEDIES = {
    "uninitialized": "write all of it first: torch.zeros() or fill_() in place of torch.empty(), or read less",
    "not finite": "keep what it reads in the range of the operation, as with clamp(), an epsilon or a wider dtype",
    "use after free": "keep a tensor that shares the memory until the work is submitted",
    "out of bounds": "mask the lanes that are beyond the tensor, or pass the right size and strides",
    "race between programs": "give each element to one program, use tl.atomic_add, or let one wait for the other by "
    "an atomic operation that releases and one that acquires",
    "several values": "let lanes of one store have different addresses, or use an atomic operation",
}
_TITLES = {
    "race": "Race: two pieces of work touch the same memory in no order, and one of them writes",
    "freed too early": "Freed too early: memory is used again while another stream still works on it",
    "use after free": "Use after free: work touches memory that was freed before",
    "not finite": "Not finite: work makes NaN or infinity, which nothing that it reads has",
    "uninitialized": "Uninitialized: work reads memory that nothing has written since it was allocated",
    "out of bounds": "Out of bounds: a kernel leaves the tensor that it was given; the access was left out",
    "race between programs": "Race between programs: two programs of a launch touch the same memory in no order, and "
    "one of them writes",
    "several values": "Several values: lanes of one store write different values to one address",
}


def reports_of(findings: Iterable[Mapping[str, Any]]) -> list[Report]:
    return [
        Report(
            finding["kind"],
            _access(finding["access"]),
            _access(finding["earlier"]) if "earlier" in finding else None,
            frames_of(finding["memory"]),
            finding["bounds"] if finding["kind"] == "out of bounds" else None,
            finding["nan"],
            finding["infinite"],
            finding["reads_infinite"],
            finding["count"],
        )
        for finding in findings
        if finding["kind"] != "not finite" or not replaced_numbers.are_expected(finding)
    ]


def _access(entry: Mapping[str, Any]) -> Access:
    places = ("line", "frames", "forward", "backward")
    named = {field.name: entry[field.name] for field in dataclasses.fields(Access) if field.name not in places}
    return Access(
        **named,
        line=KernelLine(*entry["line"]) if entry["line"] else None,
        frames=frames_of(entry),
        forward=frames_of(entry["forward"]),
        backward=frames_of(entry["backward"]),
    )


def frames_of(entry: Mapping[str, Any]) -> tuple[Frame, ...]:
    return tuple(Frame(frame["filename"], frame["line"], frame["name"]) for frame in entry["frames"])


def _distance(access: Access, address: int, size: int) -> str:
    """Where an access is that leaves a tensor."""
    if size == 0:
        return "no tensor has this memory"
    behind = access.address - (address + size)
    if behind >= 0:
        return f"{behind} bytes behind the end of the tensor, which has {size} bytes"
    if access.address < address:
        return f"{address - access.address} bytes before the tensor, which has {size} bytes"
    return f"across the end of the tensor, which has {size} bytes"


def own_lines(frames: tuple[Frame, ...]) -> list[Frame]:
    """The program's own lines; those of PyTorch and of this package only where there are no others."""
    return [frame for frame in frames if not frame.file.startswith(PACKAGES)] or list(frames)


def _indented(frames: tuple[Frame, ...]) -> list[str]:
    return [f"    {frame}" for frame in own_lines(frames)] or ["    on a thread without Python code"]
