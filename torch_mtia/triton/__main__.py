"""Runs a script, and reports what its Triton kernels are on GPUs: python -m torch_mtia.triton --target cuda:90 SCRIPT
[ARGS]. See docs/portability.md."""

from __future__ import annotations

import argparse
import runpy
import sys
from pathlib import Path

from torch_mtia.gpu_targets import parse_all
from torch_mtia.portability import strict
from torch_mtia.portability.counting import count
from torch_mtia.portability.launches import Recording
from torch_mtia.portability.refusing import RefusingRecording
from torch_mtia.portability.report import Report


def main() -> None:
    parser = argparse.ArgumentParser("python -m torch_mtia.triton", description=__doc__)
    parser.add_argument(
        "--target", action="append", required=True, metavar="NAME", help="a GPU, as cuda:90 or hip:gfx942; repeatable"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the report as JSON")
    parser.add_argument("--html", type=Path, metavar="FILE", help="also write the report as one page of HTML")
    parser.add_argument(
        "--bound",
        action="store_true",
        help="count the first launch of each specialization, and say the least time that it takes on a GPU",
    )
    parser.add_argument(
        "--refuse", action="store_true", help="raise what a GPU says to a launch that it does not compile or run"
    )
    parser.add_argument(
        "--strict",
        action="store_true",
        help="exit with 1 for a kernel that does not compile, does not fit, spills, or uses no tensor core for tl.dot",
    )
    parser.add_argument(
        "--max-spills", type=int, default=0, metavar="N", help="bytes of a thread that --strict lets a kernel spill"
    )
    parser.add_argument(
        "--baseline",
        type=Path,
        metavar="FILE",
        help="exit with 1 for a kernel that is worse than in this file, which is written if it does not exist",
    )
    parser.add_argument("script", help="a Python file")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="arguments of the script")
    options = parser.parse_args()
    accepted = None
    try:
        targets = parse_all(name for each in options.target for name in each.split(","))
        if options.baseline is not None and options.baseline.exists():
            accepted = strict.read_baseline(options.baseline)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    sys.argv = [options.script, *options.arguments]
    sys.path[0] = str(Path(options.script).resolve().parent)
    counter, end = count if options.bound else None, None
    recording = RefusingRecording(targets, counter) if options.refuse else Recording(counter)
    recording.start()
    try:
        runpy.run_path(options.script, run_name="__main__")
    except SystemExit as ended:
        end = ended
    finally:
        recording.stop()
        report = Report(recording, targets)
        print(report, file=sys.stderr)
        report.write(options.json, options.html)
    if end is not None and end.code not in (None, 0):
        raise end
    found = strict.failures(report.rows, options.max_spills) if options.strict else []
    if options.baseline is not None:
        if accepted is None:
            options.baseline.write_text(strict.baseline(report.rows))
            print(f"torch_mtia: wrote {options.baseline}", file=sys.stderr)
        else:
            found += strict.regressions(report.rows, accepted)
    for line in found:
        print(f"torch_mtia: {line}", file=sys.stderr)
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
