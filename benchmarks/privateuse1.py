"""The device under another name (PrivateUse1) against the device `mtia`: the same benchmarks, interleaved.

    python benchmarks/privateuse1.py [--rounds N] [--json FILE]

A process has the device under one name, so each round runs each benchmark once per name. The result is the geometric
mean of the ratios of medians: 1.00 is equal, above 1.00 the other name is slower.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).parent
# Small operators and one-kernel calls: the names differ in the launch, which is most of their time.
BENCHMARKS: dict[str, tuple[str, ...]] = {
    "eager.py": ("--group", "small operators"),
    "compile.py": ("--group", "call of compiled code"),
}
NAMES = {"mtia": "", "acme": "acme"}


def measure(benchmark: str, name: str) -> dict[str, float]:
    """Microseconds of each case."""
    with tempfile.TemporaryDirectory() as folder:
        rows = Path(folder) / "rows.json"
        command = [
            sys.executable,
            str(FOLDER / benchmark),
            *BENCHMARKS[benchmark],
            "--samples",
            "5",
            "--json",
            str(rows),
        ]
        environment = os.environ | {"TORCH_MTIA_PRIVATEUSE1": NAMES[name]}
        # Its exit status is about targets relative to the CPU, which do not matter here.
        finished = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if not rows.exists():
            sys.exit(f"error: {' '.join(command)} wrote no figures:\n{finished.stdout}{finished.stderr}")
        groups = json.loads(rows.read_text())["groups"]
        return {f"{benchmark}: {row['name']}": row["mtia"] for group in groups for row in group["rows"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="(default: 5)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows to a file")
    options = parser.parse_args()

    samples: dict[str, dict[str, list[float]]] = {name: collections.defaultdict(list) for name in NAMES}
    for _ in range(options.rounds):
        for benchmark in BENCHMARKS:
            for name in NAMES:
                for case, microseconds in measure(benchmark, name).items():
                    samples[name][case].append(microseconds)

    rows = []
    ratios = []
    for case, times in samples["mtia"].items():
        mtia, other = statistics.median(times), statistics.median(samples["acme"][case])
        rows.append({"name": case, "mtia_us": mtia, "acme_us": other, "ratio": other / mtia})
        ratios.append(other / mtia)
        print(f"{case:60} {mtia:10.2f} us {other:10.2f} us {other / mtia:6.3f}")
    print(f"geometric mean of {len(rows)}: {statistics.geometric_mean(ratios):.3f} (target: <= 1.03)")
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
