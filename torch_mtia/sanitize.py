"""Runs a script under the sanitizer: python -m torch_mtia.sanitize [options] SCRIPT [ARGS]. See docs/sanitizer.md."""

from __future__ import annotations

import argparse
import runpy
import sys
from pathlib import Path

from torch_mtia import sanitizer


def main() -> None:
    parser = argparse.ArgumentParser("python -m torch_mtia.sanitize", description=__doc__)
    parser.add_argument("--checks", default=",".join(sanitizer.CHECKS), help="what to look for (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write each report as a line of JSON, too")
    parser.add_argument(
        "--error-exitcode", type=int, default=1, metavar="N", help="of the process, if there are reports (default: 1)"
    )
    parser.add_argument("script", help="a Python file")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="of the script")
    options = parser.parse_args()
    checks = options.checks.split(",")
    if not set(checks) <= set(sanitizer.CHECKS):
        parser.error(f"--checks: a list, separated by commas, of {', '.join(sanitizer.CHECKS)}")
    sys.argv = [options.script, *options.arguments]
    sys.path[0] = str(Path(options.script).resolve().parent)
    sanitizer.start(*checks)
    names = {}
    try:
        names = runpy.run_path(options.script, run_name="__main__")  # kept: what they refer to is not freed yet
    finally:
        if "memory" in checks:
            sanitizer.find_leaks()
        names.clear()
        sanitizer.stop()
        sanitizer.print_reports()
        if options.json:
            options.json.write_text("".join(f"{report.to_json()}\n" for report in sanitizer.reports()))
    if sanitizer.reports():
        sys.exit(options.error_exitcode)


if __name__ == "__main__":
    main()
