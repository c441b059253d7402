"""A whole process under the sanitizer, and the others of its job: what TORCH_MTIA_SANITIZE and the command do.

Note [Reports of a job]
Processes that are started by one that is watched are watched, too: they have its environment. Each says on stderr,
with its rank, what it has found, and appends it to the file of TORCH_MTIA_SANITIZE_JSON. Who started them reads there
whether there is anything.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import multiprocessing
import os
from multiprocessing import util
from pathlib import Path
from typing import Any

from torch_mtia.environment import PREFIX, Settings


def watch(settings: Settings) -> None:
    """From now on, and says what it found when the process ends."""
    from torch_mtia import sanitizer

    sanitizer.start_process(settings.sanitize)
    if settings.sanitize_suppressions:
        sanitizer.suppress(Path(settings.sanitize_suppressions))
    json_file = Path(settings.sanitize_json) if settings.sanitize_json else None
    finds_leaks = "memory" in settings.sanitize
    atexit.register(finish, json_file, finds_leaks)
    follow_forks(json_file, finds_leaks)


def follow_forks(json_file: Path | None, finds_leaks: bool) -> None:
    """Lets processes that multiprocessing forks say what they have found: it ends them without atexit. Those of one
    that has used the device cannot use it, and may have locks of its threads that nobody opens: they say nothing."""
    from torch_mtia.backend import device_module

    was_used = False

    def before() -> None:
        nonlocal was_used
        was_used = device_module().is_initialized()

    def in_child(_: object) -> None:
        if not was_used:
            util.Finalize(None, finish, (json_file, finds_leaks), exitpriority=0)

    os.register_at_fork(before=before, after_in_child=lambda: atexit.unregister(finish) if was_used else None)
    util.register_after_fork(finish, in_child)


def finish(json_file: Path | None, finds_leaks: bool) -> None:
    """Says what was found. A process that others have started for a while, and that found nothing, says nothing."""
    from torch_mtia import sanitizer
    from torch_mtia.backend import device_module

    if finds_leaks:
        sanitizer.find_leaks()
    found = sanitizer.reports()
    if not found and (multiprocessing.parent_process() is not None or not device_module().is_initialized()):
        return
    sanitizer.print_reports()
    if json_file is not None:
        append(json_file)


def append(json_file: Path) -> None:
    """The reports of this process."""
    from torch_mtia import sanitizer

    lines = "".join(
        f"{report.to_json(rank=rank(), process=os.getpid(), text=str(report))}\n" for report in sanitizer.reports()
    )
    with json_file.open("a") as file:
        file.write(lines)  # at once: other processes write, too


def rank() -> int | None:
    """Of this process in its job; None: it is alone."""
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        return dist.get_rank()
    number = os.environ.get("RANK", "")
    return int(number) if number.isdecimal() else None


class Others:
    """Processes that are started from now on are watched as this one is."""

    def __init__(self, checks: str, json_file: Path, suppressions: Path | None = None) -> None:
        self._file = json_file
        self._read = json_file.stat().st_size if json_file.exists() else 0
        os.environ[f"{PREFIX}SANITIZE"] = checks
        os.environ[f"{PREFIX}SANITIZE_JSON"] = str(json_file.resolve())
        if suppressions is not None:
            os.environ[f"{PREFIX}SANITIZE_SUPPRESSIONS"] = str(suppressions.resolve())

    def new_reports(self) -> list[dict[str, Any]]:
        """Returns what those that have ended have found since the last call."""
        found = []
        with contextlib.suppress(FileNotFoundError), self._file.open() as file:
            file.seek(self._read)
            found = [json.loads(line) for line in file]
            self._read = file.tell()
        return [report for report in found if report["process"] != os.getpid()]
