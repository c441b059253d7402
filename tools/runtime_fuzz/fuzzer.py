"""Programs in the processes of their profiles."""

from __future__ import annotations

import collections
from collections.abc import Sequence

from tools.hunts.shrink import shrink
from tools.hunts.worker import Failure, Outcome, Run, Worker
from tools.runtime_fuzz.profiles import PROFILES, profile_of
from tools.runtime_fuzz.program import Action, Program

LIMIT = 60.0  # seconds of a program
# A failure that depends on timing has to show again this often to be shrunk further.
TRIES = 3


def prepare() -> Run[Program, str]:
    """In the process that runs programs."""
    from tools.runtime_fuzz.execute import run

    return run


class Fuzzer:
    """Runs programs, each in the process of its profile."""

    def __init__(self, limit: float = LIMIT) -> None:
        self._workers = {
            profile.name: Worker[Program, str](prepare, profile.environment, limit) for profile in PROFILES
        }
        self._started: collections.deque[Worker[Program, str]] = collections.deque()

    def start(self, program: Program) -> None:
        worker = self._workers[profile_of(program.seed).name]
        worker.start(program)
        self._started.append(worker)

    def finish(self) -> Outcome:
        """Of the oldest of the programs that were started."""
        wrong = self._started.popleft().finish()
        if isinstance(wrong, Failure):
            return Outcome(wrong.kind, wrong.detail)
        return Outcome("different", wrong) if wrong else Outcome("same")

    def run(self, program: Program) -> Outcome:
        self.start(program)
        return self.finish()

    def shrink(self, program: Program, kind: str) -> tuple[Program, bool]:
        """A smaller program that fails in the same way, and whether any failed again."""

        def smaller(actions: Sequence[Action]) -> Program:
            kept = set(map(id, actions))
            return program.without(action for action in program.actions if id(action) not in kept)

        def fails(actions: Sequence[Action]) -> bool:
            return any(self.run(smaller(actions)).kind == kind for _ in range(TRIES))

        if not fails(program.actions):
            return program, False
        return smaller(shrink(program.actions, fails, most_trials=60 if kind == "hang" else 400)), True

    def close(self) -> None:
        for worker in self._workers.values():
            worker.close()
