"""Writes docs/performance.md and its chart from what the benchmarks saved: python benchmarks/report.py FILE.json ...

The files are those of `--json`, one of each benchmark; a table has the name of its file.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

Report = dict[str, Any]  # the content of a file

DOCS = Path(__file__).parent.parent / "docs"
CHART = Path("images") / "performance.png"

HEAD = """# Performance

Written by `make bench`. `ratio` is the peer's time over ours: above 1 the device is faster. Times are medians in
microseconds of one operation; [benchmarks/README.md](../benchmarks/README.md) tells how they are measured and what the
notes mean. A bar is what a case should reach. `of roof` is the share of what the machine can do, in memory or in matrix
products, where a case states its work: 1 is the roof.

![Ratios of all cases]({chart})
"""


def time(microseconds: float) -> str:
    digits = 2 if microseconds < 100 else 0
    return f"{microseconds:,.{digits}f}"


def table(rows: list[dict[str, Any]]) -> list[str]:
    lines = ["| case | ours | peer | | ratio | of roof | bar | note |", "|---|---|---|---|---|---|---|---|"]
    for row in rows:
        peer = "" if row["peer_us"] is None else time(row["peer_us"])
        ratio = "" if row["ratio"] is None else f"{row['ratio']:.2f}"
        roof = "" if row["roof_us"] is None else f"{row['roof_us'] / row['ours_us']:.2f}"
        bar = row["bar"] + (" (missed)" if row["passed"] is False else "")
        cells = (row["name"], time(row["ours_us"]), peer, row["peer"], ratio, roof, bar, row["note"])
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def section(name: str, report: Report) -> list[str]:
    about = report["environment"]
    machine = f"{about['CPU']}, {about['threads']} threads, torch {about['torch']}, Python {about['python']}"
    lines = [f"## {name}", "", f"{machine}; `{about['settings']}`" if about["settings"] else machine, ""]
    lines += table(report["rows"])
    for group in report["groups"]:
        missed = " (missed)" if group["passed"] is False else ""
        mean = f"{group['name']}: geometric mean {group['ratio']:.2f} of {group['cases']} cases"
        lines += ["", f"{mean}, bar {group['bar']}{missed}"]
    return [*lines, ""]


def draw(reports: dict[str, Report], picture: Path) -> None:
    """A dot for each case, at its ratio; a row for each benchmark."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(10, 0.8 + 0.5 * len(reports)), layout="constrained")
    for height, report in enumerate(reversed(reports.values())):
        ratios = [row["ratio"] for row in report["rows"] if row["ratio"] is not None]
        axes.plot(ratios, [height] * len(ratios), "o", alpha=0.5)
    axes.axvline(1, color="gray", linewidth=0.8)
    axes.set_xscale("log")
    ticks = (0.25, 0.5, 1, 2, 4, 8, 16)
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_yticks(range(len(reports)), list(reversed(reports)))
    axes.set(ylim=(-0.5, len(reports) - 0.5), xlabel="the peer's time over ours")
    figure.savefig(picture, dpi=90)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE.json")
    arguments = parser.parse_args()
    reports: dict[str, Report] = {file.stem: json.loads(file.read_text()) for file in arguments.files}
    lines = [HEAD.format(chart=CHART)]
    for name, report in reports.items():
        lines += section(name, report)
    (DOCS / "performance.md").write_text("\n".join(lines))
    draw(reports, DOCS / CHART)


if __name__ == "__main__":
    main()
