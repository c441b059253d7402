"""Runs a script under the sanitizer: python -m torch_mtia.sanitize [options] SCRIPT [ARGS]. See docs/sanitizer.md."""

from __future__ import annotations

import argparse
import runpy
import sys
import tempfile
from pathlib import Path

from torch_mtia import sanitizer
from torch_mtia.sanitizer import process


def main() -> None:
    parser = argparse.ArgumentParser("python -m torch_mtia.sanitize", description=__doc__)
    parser.add_argument("--checks", default=",".join(sanitizer.CHECKS), help="comma-separated (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also append each report as a line of JSON")
    parser.add_argument("--suppressions", type=Path, metavar="FILE", help="reports to suppress, with reasons")
    parser.add_argument(
        "--error-exitcode", type=int, default=1, metavar="N", help="exit status if there are reports (default: 1)"
    )
    parser.add_argument("script", help="a Python file")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="arguments of the script")
    options = parser.parse_args()
    checks = options.checks.split(",")
    if not set(checks) <= set(sanitizer.CHECKS):
        parser.error(f"--checks: a comma-separated list of {', '.join(sanitizer.CHECKS)}")
    if options.suppressions:
        try:
            sanitizer.suppress(options.suppressions)
        except (OSError, ValueError) as error:
            parser.error(f"--suppressions: {error}")
    sys.argv = [options.script, *options.arguments]
    sys.path[0] = str(Path(options.script).resolve().parent)
    with tempfile.TemporaryDirectory() as folder:
        json_file, finds_leaks = options.json or Path(folder) / "reports", "memory" in checks
        others = process.Others(options.checks, json_file, options.suppressions)
        process.follow_forks(json_file, finds_leaks)
        sanitizer.start(*checks)
        names, end = {}, None
        try:
            names = runpy.run_path(options.script, run_name="__main__")  # alive: what they refer to is not freed yet
        except SystemExit as ended:
            end = ended
        finally:
            if finds_leaks:
                sanitizer.find_leaks()
            names.clear()
            sanitizer.stop()
            sanitizer.print_reports()
            process.append(json_file)
        if elsewhere := len(others.new_reports()):
            print(f"torch_mtia sanitizer: {elsewhere} more from other processes", file=sys.stderr)
        if sanitizer.reports() or elsewhere:
            if end is not None and end.code is not None and not isinstance(end.code, int):
                print(end.code, file=sys.stderr)  # as Python does
            sys.exit(options.error_exitcode)
        if end is not None:
            raise end


if __name__ == "__main__":
    main()
