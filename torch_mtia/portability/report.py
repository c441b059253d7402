"""The report of a recording: its rows as text, JSON and a page."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import triton

from torch_mtia.gpu_targets import Target, parse_all
from torch_mtia.portability import bound, page, stored_rows
from torch_mtia.portability.binary import code_sha256
from torch_mtia.portability.chips import CHIPS
from torch_mtia.portability.counting import count
from torch_mtia.portability.launches import Recording
from torch_mtia.portability.lines import described
from torch_mtia.portability.reasons import explain
from torch_mtia.portability.refusing import RefusingRecording
from torch_mtia.portability.rows import Row, compile_rows
from torch_mtia.portability.workers import TIMEOUT, Pool


class Report:
    """What the kernels of a recording are on the targets.

    Attributes:
        targets: their names.
        timeout: seconds that the compiler of one kernel for one target may take.
    """

    def __init__(self, recording: Recording, targets: Sequence[Target], timeout: float = TIMEOUT) -> None:
        self._recording = recording
        self._targets = targets
        self.targets = tuple(map(str, targets))
        self.timeout = timeout
        self._rows: list[Row] = []
        self._compiled = 0  # specializations

    @property
    def rows(self) -> list[Row]:
        """Returns a row for each specialization and target, in the order of first launches. Compiles what was launched
        since the last use."""
        new = self._recording.specializations[self._compiled :]
        self._compiled += len(new)
        found = {each: stored_rows.load(each, self._targets) for each in new}
        if missing := [each for each, rows in found.items() if rows is None]:
            with Pool(self.timeout) as pool:
                rows = compile_rows(missing, self._targets, pool)
                explain(rows, pool)
            for number, each in enumerate(missing):
                found[each] = rows[number * len(self._targets) : (number + 1) * len(self._targets)]
                stored_rows.store(found[each] or [], self._targets)
        self._rows += [row for rows in found.values() for row in rows or []]
        return self._rows

    @property
    def _counts(self) -> bool:
        return any(each.counts is not None for each in self._recording.specializations)

    @property
    def remarks(self) -> list[str]:
        """Returns what the report does not show, as lines of text."""
        found = []
        if number := self._recording.generated:
            found.append(
                f"left out: {_number(number, 'kernel')} of Inductor's or torch_mtia's, with block sizes for this device"
            )
        for file, line, reason in dict.fromkeys(self._recording.refused):
            found.append(f"not launched: mtia does not compile {os.path.relpath(file)}:{line}: {reason}")
        if names := self._recording.without_source:
            found.append(f"left out: {', '.join(names)}, compiled from intermediate code")
        not_counted = sum(each.counts is None for each in self._recording.specializations)
        if self._recording.counts and not_counted:
            found.append(
                f"not counted: {_number(not_counted, 'specialization')}, first launched under the sanitizer or in a "
                "captured stream, or not compiled for it"
            )
        unknown = [name for name in self.targets if name not in CHIPS]
        if unknown:
            found.append(f"the limits of {', '.join(unknown)} are not known here: kernels are compiled, no more")
        return found

    def __str__(self) -> str:
        lines = [bound.FIRST_LINE] if self._counts else []
        lines += [
            f"torch_mtia: {_number(len(self._recording.specializations), 'specialization')} of kernels on "
            f"{', '.join(self.targets)}"
        ]
        for group in self.kernels():
            first = group[0]
            lines += ["", f"{first.kernel} at {os.path.relpath(first.file)}:{first.line}"]
            for row in group:
                if row.target == self.targets[0]:
                    lines.append(f"  {row.title or 'no constants'}")
                    if row.specialization.counts is not None:
                        lines.append(f"    {bound.counted(row.specialization.counts)}")
                lines += [f"    {line}" for line in described(row)]
        return "\n".join([*lines, *([""] if self.remarks else []), *self.remarks])

    def kernels(self) -> Iterator[list[Row]]:
        """Returns the rows of each kernel. That of an autotuned one has those of all configurations that were tried."""
        groups: dict[tuple[str, str, int], list[Row]] = {}
        for row in self.rows:
            groups.setdefault((row.file, row.kernel, row.line), []).append(row)
        return iter(groups.values())

    def to_json(self) -> str:
        """Returns the report as JSON."""
        rows = [_record(row) for row in self.rows]
        everything = {"triton": triton.__version__, "targets": self.targets, "rows": rows, "remarks": self.remarks}
        return json.dumps(everything, indent=1)

    def to_html(self) -> str:
        """Returns the report as a page that needs no other file."""
        first = bound.FIRST_LINE if self._counts else ""
        return page.html(self.targets, list(self.kernels()), self.remarks, first)

    def write(self, json_file: Path | None, html_file: Path | None) -> None:
        """Writes the files that are named."""
        for file, text in ((json_file, self.to_json), (html_file, self.to_html)):
            if file is not None:
                file.write_text(text())


def _number(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count != 1)}"


def _record(row: Row) -> dict[str, Any]:
    code, resident = row.code, row.occupancy
    source, counts = row.specialization.source, row.specialization.counts
    return {
        "kernel": row.kernel,
        "file": row.file,
        "line": row.line,
        "signature": {name: str(kind) for name, kind in source.signature.items()},
        "constants": {name: value if isinstance(value, (bool, int, float, str)) else str(value)
                      for name, value in row.constants.items()},
        "aligned": [name for place, name in enumerate(source.signature)
                    if ["tt.divisibility", 16] in source.attrs.get((place,), [])],
        "options": {name: str(value) for name, value in row.specialization.options.items()},
        "target": row.target,
        "key": row.key,
        "status": row.status,
        "message": row.message,
        "place": row.place,
        "registers": code and code.registers,
        "allocated_registers": code and code.allocated,
        "spilled_bytes": code and code.spilled,
        "stack_bytes": code and code.stack,
        "shared_bytes": code and code.shared,
        "max_shared_bytes": row.max_shared,
        "warps": code and code.warps,
        "programs_per_multiprocessor": resident and resident.programs,
        "warps_per_multiprocessor": resident and resident.warps,
        "max_warps_per_multiprocessor": resident and resident.max_warps,
        "limited_by": list(resident.limits) if resident is not None else [],
        "counts": counts and dataclasses.asdict(counts),
        "bounds": [each._asdict() for each in bound.bounds(counts, row.target)] if counts else [],
        "has_dot": row.has_dot,
        "matrix_instructions": list(code.matrix) if code is not None else [],
        "files": row.files,
        "code_sha256": next((code_sha256(Path(row.files[kind]).read_bytes())
                             for kind in ("cubin", "hsaco") if kind in row.files), ""),
        "accesses": [
            {"file": each.file, "line": each.line, "kind": each.kind, "bits": dict(each.widths),
             "contiguous_bytes": row.contiguous.get((each.file, each.line, each.kind)),
             "reason": row.reasons.get((each.file, each.line, each.kind), "")}
            for each in (code.accesses if code is not None else ())
        ],
        "shared_accesses": [each._asdict() for each in (code.shared_accesses if code is not None else ())],
    }  # fmt: skip


@contextlib.contextmanager
def targets(*names: str, bound: bool = False, refuse: bool = False, timeout: float = TIMEOUT) -> Iterator[Report]:
    """Returns what `torch_mtia.triton.targets` does, which documents it."""
    chosen = parse_all(names)
    if not chosen:
        raise ValueError("targets() takes at least one name, such as 'cuda:90'")
    counter = count if bound else None
    recording = RefusingRecording(chosen, counter, timeout) if refuse else Recording(counter)
    recording.start()
    try:
        yield (report := Report(recording, chosen, timeout))
    finally:
        recording.stop()
    _ = report.rows
