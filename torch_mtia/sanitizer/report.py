"""A finding of the sanitizer, as text and as JSON."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from torch_mtia.backend import device_type
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
        return f"stream_{self.stream}", f", where stream_{self.stream} is {self.where}"

    @property
    def program_line(self) -> str:
        """The program's innermost line of it, or of the backward() that submitted it."""
        lines = own_lines(self.frames) or own_lines(self.backward)
        return f"{lines[0].file}:{lines[0].line}" if lines else "the later access"

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
            lines.append(f"    in {self.node}, during backward(){' called at' if self.backward else ''}")
            lines += [f"  {line}" for line in _indented(self.backward) if self.backward]
        if self.forward:
            lines += ["    differentiating the operator called at", *(f"  {line}" for line in _indented(self.forward))]
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
        line = self.access.program_line
        waits = f"`torch.{device_type()}.current_stream({self.access.device or ''}).wait_stream({earlier})`"
        if self.kind == "freed too early":
            return f"before the tensor is freed, call `tensor.record_stream({earlier})` or {waits}{where}"
        if self.access.stream is None:
            return f"before {line}, call `{earlier}.synchronize()`{where}"
        if self.earlier.is_collective:
            there = "" if self.access.is_collective else f" in {self.access.where}"
            return f"before {line}, call `work.wait()`{there}, where work is what {self.earlier.operator} returned"
        return f"before {line}, call {waits}{where}"

    def __str__(self) -> str:
        lines = [f"{_TITLES[self.kind]}{f' ({self.count} times)' if self.count > 1 else ''}", f"  {self.access}"]
        lines += self.access.lines()
        if self.kind == "not finite":
            if self.earlier is not None:
                lines.append(f"  stored at {self.earlier.line}")
            inputs = "some inputs are infinite, none is NaN" if self.reads_infinite else "all inputs are finite"
            lines.append(f"  the result has {self._numbers()}; {inputs}")
        elif self.kind == "race between programs":  # of one launch
            assert self.earlier is not None
            lines += [f"  {self.earlier}, in the same launch", f"    {self.earlier.line}"]
        elif self.earlier is not None:
            lines += [f"  {self.earlier}, submitted earlier", *self.earlier.lines()]
        if self.bounds is not None:
            lines.append(f"  {_distance(self.access, *self.bounds)}")
        if self.memory:
            if self.kind == "out of bounds":
                lines.append("  the tensor was allocated at")
            else:
                lines.append(f"  the memory was {'allocated' if self.kind == 'uninitialized' else 'freed'} at")
            lines += _indented(self.memory)
        return "\n".join([*lines, f"  Fix: {self.remedy}."])

    def _numbers(self) -> str:
        counts = ((self.nan, "NaN"), (self.infinite, "infinite"))
        values = "value" if (self.infinite or self.nan) == 1 else "values"
        return f"{' and '.join(f'{count} {name}' for count, name in counts if count)} {values}"

    def to_json(self, **more: object) -> str:
        """Returns one line."""
        return json.dumps(dataclasses.asdict(self) | {"remedy": self.remedy} | more)


_REMEDIES = {
    "uninitialized": "allocate it with `torch.zeros()` in place of `torch.empty()`, fill it first, or read less of it",
    "not finite": "keep the inputs in the operation's range, as `x.clamp(min=1e-12)` does, or use a wider dtype",
    "use after free": "keep a reference to the tensor until the work is submitted; give a graph new inputs by "
    "`x.copy_(new)`",
    "out of bounds": "mask the lanes beyond the tensor, as `mask=offsets < n` does, or pass the right size and strides",
    "race between programs": "give each element to one program, use `tl.atomic_add(pointer, value)`, or synchronize "
    "the programs by atomics",
    "several values": "give each lane an address of its own, or use `tl.atomic_add(pointers, values)`",
}
_TITLES = {
    "race": "Race: unordered accesses to the same memory, at least one of which writes",
    "freed too early": "Freed too early: memory is reused while another stream still accesses it",
    "use after free": "Use after free: work accesses memory that was freed before the work was submitted",
    "not finite": "Not finite: an operation makes NaN or infinity that its inputs do not have",
    "uninitialized": "Uninitialized: work reads memory that has not been written since it was allocated",
    "out of bounds": "Out of bounds: a kernel accesses memory outside its tensor; the access was skipped",
    "race between programs": "Race between programs: unordered accesses of two programs of one launch, at least one of "
    "which writes",
    "several values": "Several values: lanes of one store write different values to the same address",
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
    """Returns where an access is that leaves a tensor."""
    if size == 0:
        return "no tensor has this memory"
    after = access.address - (address + size)
    if after >= 0:
        return f"{after} bytes past the end of the tensor, which has {size} bytes"
    if access.address < address:
        return f"{address - access.address} bytes before the tensor, which has {size} bytes"
    return f"across the end of the tensor, which has {size} bytes"


def own_lines(frames: tuple[Frame, ...]) -> list[Frame]:
    """Returns the program's own lines; those of PyTorch and of this package only where there are no others."""
    return [frame for frame in frames if not frame.file.startswith(PACKAGES)] or list(frames)


def _indented(frames: tuple[Frame, ...]) -> list[str]:
    return [f"    {frame}" for frame in own_lines(frames)] or ["    on a thread without Python code"]
