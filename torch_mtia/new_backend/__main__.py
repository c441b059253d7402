"""`python -m torch_mtia.new_backend NAME`: the command line."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from torch_mtia.new_backend import write


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m torch_mtia.new_backend",
        description="Writes the package of a new device, with a driver that runs on the host and tests that pass.",
        epilog="Exit status: 0 if the package was written, 2 if the name is not valid or the folder exists.",
    )
    parser.add_argument("name", metavar="NAME", help='device name, as in tensor.to("NAME")')
    parser.add_argument("--output", type=Path, metavar="DIR", help="folder to create (default: torch_NAME)")
    arguments = parser.parse_args(argv)
    output = arguments.output or Path(f"torch_{arguments.name}")
    try:
        files = write(arguments.name, output)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(*files, sep="\n")
    print(f"\nNext: cd {output} && ./ci.sh")
    return 0


if __name__ == "__main__":
    sys.exit(main())
