"""Programs in the processes of their profiles."""

from __future__ import annotations

from collections.abc import Sequence

from tools.hunts.shrink import shrink
from tools.hunts.worker import Outcome, Run, Worker
from tools.runtime_fuzz.profiles import PROFILES, Profile
from tools.runtime_fuzz.program import Action, Program

LIMIT = 60.0  # seconds of a program
# A failure that depends on timing has to show again this often to be shrunk further.
TRIES = 3


def prepare() -> Run[Program]:
    """In the process that runs programs."""
    from tools.runtime_fuzz.execute import run

    return run


class Fuzzer:
    """Runs programs, each in the process of its profile."""

    def __init__(self, limit: float = LIMIT) -> None:
        self._workers = {profile.name: Worker[Program](prepare, profile.environment, limit) for profile in PROFILES}

    def run(self, program: Program, profile: Profile) -> Outcome:
        return self._workers[profile.name].run(program)

    def shrink(self, program: Program, profile: Profile, kind: str) -> tuple[Program, bool]:
        """A smaller program that fails in the same way, and whether any failed again."""

        def smaller(actions: Sequence[Action]) -> Program:
            kept = set(map(id, actions))
            return program.without(action for action in program.actions if id(action) not in kept)

        def fails(actions: Sequence[Action]) -> bool:
            return any(self.run(smaller(actions), profile).kind == kind for _ in range(TRIES))

        if not fails(program.actions):
            return program, False
        return smaller(shrink(program.actions, fails, most_trials=60 if kind == "hang" else 400)), True

    def close(self) -> None:
        for worker in self._workers.values():
            worker.close()
