"""Adds to the actions of a program what orders them: the least that a correct program needs, and of random kinds.

Note [What a thread knows]
Every use of a buffer has a number in its stream. For each stream, a thread knows up to which number other streams are
done before whatever it submits next: from `wait_stream` and events (of this stream), and from waits of the host (for
all streams). What another thread made sure of does not count, for it may not have happened yet: threads wait for one
another only where they touch the same buffer. For the same reason a number stands for those before it, in the program's
order, with one thread only.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator

from tools.runtime_fuzz.program import Action, Buffer, Program

Point = tuple[int, int]  # a stream, and the number of a use in it
HOST = -1


@dataclasses.dataclass(frozen=True)
class Step:
    """A statement of a thread. `behind`: steps of other threads that it waits for. Without `action`: the device's only,
    and left out where `name`, if there is one, does not exist."""

    text: str
    thread: int
    behind: tuple[int, ...] = ()
    action: Action | None = None
    name: str = ""


@dataclasses.dataclass
class _State:
    """How a buffer was used."""

    buffer: Buffer
    stream: int  # that its memory belongs to; HOST: of no stream
    names: set[str]
    written: list[Point] = dataclasses.field(default_factory=list)
    read: dict[tuple[int, int], int] = dataclasses.field(default_factory=dict)  # by thread and stream, the last time
    last_write: int | None = None  # steps
    last_reads: list[int] = dataclasses.field(default_factory=list)

    def uses(self) -> list[Point]:
        """Those behind which all others are. Two threads' uses in one stream are in no order."""
        return [*self.written, *((stream, number) for (_, stream), number in self.read.items())]


class _Ordering:
    def __init__(self, program: Program) -> None:
        self._program = program
        self._states: dict[str, _State] = {}
        self._issued = [0] * len(program.devices)
        self._known: dict[tuple[int, int, int], int] = {}  # of (thread, its stream or HOST, other stream)
        self._points: set[tuple[int, int, Point]] = set()  # what is known with several threads
        self._events = 0
        self._steps: list[Step] = []
        self._random = random.Random()

    def steps(self) -> list[Step]:
        for action in self._program.actions:
            # Of the action alone, so that a shrunk program orders what is left as before.
            self._random.seed(f"{self._program.seed} {action.text}")
            self._add(action)
        return self._steps

    def _add(self, action: Action) -> None:
        behind = {step for name in action.needs() if name in self._states for step in self._conflicts(action, name)}
        first = len(self._steps)
        for name in action.reads:
            for point in self._states[name].written:
                self._order(action, action.stream, point)
        target = action.stream if action.other < 0 else action.other
        for name in action.writes:
            for point in self._states[name].uses():
                self._order(action, target, point)
        for name in action.moves:
            for stream in {*(stream for stream, _ in self._states[name].uses()), action.stream}:
                self._say(action, f"{name}.record_stream(streams[{stream}])", name)
        for name in action.deletes:
            if name in self._states:
                self._free(action, name)
        self._steps.append(Step(action.text, action.thread, action=action))
        last = len(self._steps) - 1
        waits = tuple(sorted(step for step in behind if self._steps[step].thread != action.thread))
        self._steps[first] = dataclasses.replace(self._steps[first], behind=waits)
        self._use(action, target, last)

    def _conflicts(self, action: Action, name: str) -> Iterator[int]:
        state = self._states[name]
        if state.last_write is not None:
            yield state.last_write
        if name in action.writes or name in action.deletes:
            yield from state.last_reads

    def _use(self, action: Action, target: int, step: int) -> None:
        """Notes what the action does to its buffers."""
        for name, buffer in action.defines:
            stream = target if buffer.device >= 0 else HOST
            self._states[name] = _State(buffer, stream, {name}, last_write=step)
        for name, source in action.shares:
            self._states[name] = self._states[source]
            self._states[name].names.add(name)
        if action.stream >= 0:
            here = self._tick(action.stream)
            there = here if target == action.stream else self._tick(target)
            if action.other >= 0:  # a copy between devices has the other stream wait for it
                self._learn(action.thread, target, here)
            for name in action.reads:
                self._states[name].read[action.thread, here[0]] = here[1]
            for name in action.writes:
                self._states[name].written, self._states[name].read = [there], {}
            for name, _ in action.defines:
                self._states[name].written = [there]
            if action.waits:
                self._learn(action.thread, HOST, here)
        for name in action.moves:
            self._states[name].stream = action.stream
        for name in (*action.reads, *(name for name, _ in action.shares)):
            self._states[name].last_reads.append(step)
        for name in action.writes:
            self._states[name].last_write, self._states[name].last_reads = step, []
        for name in action.deletes:
            if state := self._states.pop(name, None):
                state.names.discard(name)
                state.last_reads.append(step)

    def _tick(self, stream: int) -> Point:
        self._issued[stream] += 1
        return stream, self._issued[stream]

    def _learn(self, thread: int, stream: int, point: Point) -> None:
        self._points.add((thread, stream, point))
        key = (thread, stream, point[0])
        self._known[key] = max(point[1], self._known.get(key, 0))

    def _knows(self, thread: int, stream: int, point: Point) -> bool:
        if self._program.threads > 1:
            return any((thread, place, point) in self._points for place in (stream, HOST))
        return point[1] <= max(self._known.get((thread, place, point[0]), 0) for place in (stream, HOST))

    def _learn_all(self, thread: int, stream: int, of: int, point: Point) -> None:
        """`stream` waits for all of the stream `of`: with one thread, for what that waited for, too."""
        self._learn(thread, stream, point)
        if self._program.threads == 1:
            self._learn(thread, stream, (of, self._issued[of]))
            for (_, waiting, other), number in list(self._known.items()):
                if waiting == of:
                    self._learn(thread, stream, (other, number))

    def _order(self, action: Action, stream: int, point: Point) -> None:
        """Has what the thread submits to a stream, or does on the host, come behind a use."""
        if point[0] == stream or self._knows(action.thread, stream, point):
            return
        of = point[0]
        kinds = ["host", "host", "device", "query"] if stream == HOST else ["stream"] * 5 + ["event"] * 5 + ["host"]
        kind = self._random.choice(kinds)
        self._events += 1
        event = f"e{self._events}"
        if kind == "stream":
            self._say(action, f"streams[{stream}].wait_stream(streams[{of}])")
        elif kind == "event":
            self._say(action, f"{event} = streams[{of}].record_event()")
            self._say(action, f"streams[{stream}].wait_event({event})")
        elif kind == "query":
            self._say(action, f"{event} = streams[{of}].record_event()")
            self._say(action, f"{event}.query() or {event}.synchronize()")
        elif kind == "device":
            self._say(action, f"torch.accelerator.synchronize(devices[{self._program.devices[of]}])")
        else:
            self._say(action, f"streams[{of}].synchronize()")
        self._learn_all(action.thread, stream if kind in ("stream", "event") else HOST, of, point)

    def _free(self, action: Action, name: str) -> None:
        """Has the memory come back only behind all that uses it."""
        state = self._states[name]
        if state.buffer.device < 0 or (len(state.names) > 1 and not state.buffer.loose):
            return
        for point in state.uses():
            if state.buffer.loose:
                self._say(action, f"{name}.record_stream(streams[{point[0]}])", name)
            elif point[0] != state.stream and not self._knows(action.thread, state.stream, point):
                if self._random.random() < 0.6:
                    self._say(action, f"{name}.record_stream(streams[{point[0]}])", name)
                else:
                    self._order(action, state.stream, point)

    def _say(self, action: Action, text: str, name: str = "") -> None:
        self._steps.append(Step(text, action.thread, name=name))


def order(program: Program) -> list[Step]:
    """The statements of a program, in an order in which one thread after the other may submit them."""
    return _Ordering(program).steps()
