"""A program under construction, and the table of actions that it is made of. To add one: a function in actions.py that
appends it, decorated with its weight.

It picks names among those in scope, and returns False, having appended nothing, if none fits. Statements give the same
bits on both sides: integers wrap alike, and floating-point numbers stay small whole ones.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable

from tools.runtime_fuzz.program import Action, Buffer, Program

ActionWriter = Callable[["Writer"], bool]
_ACTIONS: dict[ActionWriter, int] = {}

DTYPES = ("int64", "int32", "float32")
# Of work that runs at once, that an executor runs, and that it shares among threads.
SIZES = (16, 512, 20_000, 300_000)
MODULUS = 97


def action(weight: int) -> Callable[[ActionWriter], ActionWriter]:
    def register(function: ActionWriter) -> ActionWriter:
        _ACTIONS[function] = weight
        return function

    return register


@dataclasses.dataclass
class Tensor:
    """A name in scope."""

    name: str
    buffer: Buffer
    form: str  # what it fits together with
    size: int  # 0: not of one dimension and contiguous
    dtype: str
    thread: int
    graph: str = ""  # that uses its address, or owns it


@dataclasses.dataclass
class Graph:
    name: str
    thread: int
    stream: int
    reads: list[Tensor]
    writes: list[Tensor]
    results: list[Tensor]


class Writer:
    """A program under construction."""

    def __init__(self, seed: int, devices: int) -> None:
        self.random = random.Random(seed)
        self.seed = seed
        side = [self.random.randrange(devices) for _ in range(self.random.choice((1, 2, 2, 3, 4)))]
        self.devices = (*range(devices), *side)
        self.threads = self.random.choice((1, 1, 1, 2, 3))
        self.thread = 0
        self.tensors: list[Tensor] = []
        self.graphs: list[Graph] = []
        self.cloned_lazily: list[Buffer] = []
        self.actions: list[Action] = []
        self._names = 0

    def program(self) -> Program:
        writers, weights = list(_ACTIONS), list(_ACTIONS.values())
        wanted = self.random.choice((6, 12, 25, 50)) * self.threads
        while len(self.actions) < wanted:
            self.thread = self.random.randrange(self.threads)
            self.random.choices(writers, weights)[0](self)
        return Program(self.seed, self.devices, tuple(self.actions))

    def name(self, prefix: str) -> str:
        self._names += 1
        return f"{prefix}{self._names}"

    def append(self, kind: str, text: str, **facts: object) -> bool:
        self.actions.append(Action(kind, text, self.thread, **facts))  # type: ignore[arg-type]
        return True

    def stream(self, device: int) -> int:
        return self.random.choice([stream for stream, of in enumerate(self.devices) if of == device])

    def size(self) -> int:
        return self.random.choice(SIZES)

    def new(self, prefix: str, device: int, size: int, dtype: str, form: str = "") -> Tensor:
        """A tensor in scope from here on."""
        buffer = Buffer(device, loose=device >= 0 and self.random.random() < 0.3)
        tensor = Tensor(self.name(prefix), buffer, form or str(size), size, dtype, self.thread)
        self.tensors.append(tensor)
        return tensor

    def pick(self, condition: Callable[[Tensor], bool]) -> Tensor | None:
        """A tensor for which the condition holds, rather of this thread and recent."""
        found = [tensor for tensor in self.tensors if condition(tensor)]
        own = [tensor for tensor in found if tensor.thread == self.thread]
        if own and self.random.random() < 0.85:
            found = own
        if not found:
            return None
        return self.random.choice(found[-4:] if self.random.random() < 0.5 else found)

    def on_device(self) -> Tensor | None:
        return self.pick(lambda tensor: tensor.buffer.device >= 0)

    def like(self, other: Tensor) -> Tensor | None:
        """Of the same device and size, with memory of its own."""
        return self.pick(
            lambda t: t.buffer.device == other.buffer.device and t.form == other.form and t.buffer is not other.buffer
        )

    def forget(self, tensor: Tensor) -> None:
        self.tensors.remove(tensor)

    def number(self) -> int:
        return self.random.randint(1, 50)
