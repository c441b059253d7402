"""The report of a whole process: what TORCH_MTIA_TARGETS does."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Sequence

from torch_mtia.gpu_targets import parse_all
from torch_mtia.portability.launches import Recording


def start(names: Sequence[str], refuse: bool = False) -> None:
    """From now on; the report is printed on stderr when the process ends. `refuse`: launches raise what targets say."""
    recording, process = _recording(names, refuse), os.getpid()
    recording.start()
    atexit.register(_finish, recording, names, process)


def _recording(names: Sequence[str], refuse: bool) -> Recording:
    if not refuse:
        return Recording()
    from torch_mtia.portability.refusing import RefusingRecording

    return RefusingRecording(parse_all(names))


def _finish(recording: Recording, names: Sequence[str], process: int) -> None:
    recording.stop()
    if os.getpid() != process or not (recording.specializations or recording.generated or recording.refused):
        return  # a child of a fork, or a process that launched nothing
    from torch_mtia.portability.report import Report

    print(Report(recording, parse_all(names)), file=sys.stderr)
