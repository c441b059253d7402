"""What a program of the fuzzer is."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

Names = tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Buffer:
    """Memory that tensors share. `device`: its index, -1 for pinned memory of the host."""

    device: int
    loose: bool = False  # which block a tensor of it has is known at run time only: lazy clones, results of graphs


@dataclasses.dataclass(frozen=True)
class Action:
    """One statement, which is Python for both sides; see execute.py for the names that it may use.

    Where it says `stream`, that is the current stream of its device while the statement runs, and `other` that of
    another device, for copies between devices. What the statement reads and writes is read and written by work of
    `stream` (copies between devices write in `other`), unless `waits`: then the statement itself waits for the stream.
    """

    kind: str
    text: str
    thread: int = 0
    stream: int = -1  # -1: of the host alone
    other: int = -1
    defines: tuple[tuple[str, Buffer], ...] = ()
    shares: tuple[tuple[str, str], ...] = ()  # new names for memory that another name has
    reads: Names = ()
    writes: Names = ()
    deletes: Names = ()
    uses: Names = ()  # names that are neither read nor written in a stream: graphs
    makes: Names = ()  # names of no memory: graphs, copies on the host
    moves: Names = ()  # get other memory, in `stream`
    waits: bool = False

    def needs(self) -> set[str]:
        return {*self.reads, *self.writes, *self.deletes, *self.uses, *(source for _, source in self.shares)}

    def provides(self) -> set[str]:
        return {*(name for name, _ in self.defines), *(name for name, _ in self.shares), *self.makes}


@dataclasses.dataclass(frozen=True)
class Program:
    seed: int
    devices: tuple[int, ...]  # of each stream; those of the default streams come first
    actions: tuple[Action, ...]

    @property
    def threads(self) -> int:
        return 1 + max((action.thread for action in self.actions), default=0)

    def without(self, dropped: Iterable[Action]) -> Program:
        """The program without some actions, and without those that need what they provide."""
        gone = set(map(id, dropped))
        missing: set[str] = set()
        kept = []
        for action in self.actions:
            if id(action) in gone or action.needs() & missing:
                missing |= action.provides()
            else:
                kept.append(action)
        return dataclasses.replace(self, actions=tuple(kept))
