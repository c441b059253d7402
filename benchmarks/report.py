"""Writes a page of docs/ and its chart from what the benchmarks saved; with `performance`, README's table too.

    python benchmarks/report.py PAGE FILE.json ...

The files are those of `--json`, one of each benchmark; a table has the name of its file.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

Report = dict[str, Any]  # the content of a file

ROOT = Path(__file__).parent.parent

# The title of a page, and what wrote it.
PAGES = {
    "performance": ("Performance", "`make bench`"),
    "performance-avx2": (
        "Performance with AVX2",
        "`make bench-avx2`, where the device and its peers do without AVX-512 and AMX,",
    ),
}
HEAD = """# {title}

Written by {command} on {machine}.

Times are medians in microseconds of one operation. `ratio` is the peer's time over ours: above 1 the device is faster.
A bar is what a case should reach. `of roof` is the share of what the machine can do, in memory or in matrix products,
where a case states its work: 1 is the roof. [benchmarks/README.md](../benchmarks/README.md) describes how the figures
are measured, and what the notes mean.

![Ratios of all cases]({chart})
"""

# What README shows: what it says of a row, the table, and the row. None: the geometric mean of the table.
OF_README = (
    ("the first tensor of a process", "start", "first tensor"),
    ("a chain of operators on 16 elements, forward", "device", "chain 16, forward, host idle"),
    ("a chain of operators on 64K elements, forward", "device", "chain 64K, forward, host idle"),
    ("a training step of `make demo-text`", "eager", "training step, text"),
    ("Triton kernels written by hand, geometric mean", "triton_kernels", None),
    ("programs under `torch.compile`, geometric mean", "compile", None),
)


def time(microseconds: float) -> str:
    digits = 2 if microseconds < 100 else 0
    return f"{microseconds:,.{digits}f}"


def machine(report: Report) -> str:
    about = report["environment"]
    return (
        f"{about['date']}, with {about['cores']} cores of an {about['CPU']} ({about['CPU capability']}), "
        f"torch {about['torch']}, Python {about['python']}"
    )


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
    settings = f", `{about['settings']}`" if about["settings"] else ""
    lines = [f"## {name}", "", report["about"], ""]
    lines += [f"`python benchmarks/{name}.py`, threads of each process: {about['threads']}{settings}.", ""]
    lines += table(report["rows"])
    if (mean := report["geometric mean"]) is not None:
        lines += ["", f"Geometric mean of the ratios without a note: {mean:.2f}."]
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


def of_readme(reports: dict[str, Report]) -> list[str]:
    lines = [f"Measured on {machine(next(iter(reports.values())))}.", ""]
    lines += ["| what | ours | peer | ratio | command |", "|---|---|---|---|---|"]
    for what, name, case in OF_README:
        report = reports[name]
        row = next((row for row in report["rows"] if row["name"] == case), None)
        ours, peer = ("", "") if row is None else (f"{time(row[side])} us" for side in ("ours_us", "peer_us"))
        ratio = report["geometric mean"] if row is None else row["ratio"]
        lines.append(f"| {what} | {ours} | {peer} | {ratio:.2f} | `python benchmarks/{name}.py` |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page", choices=PAGES)
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE.json")
    arguments = parser.parse_args()
    reports: dict[str, Report] = {file.stem: json.loads(file.read_text()) for file in arguments.files}
    title, command = PAGES[arguments.page]
    chart = Path("images") / f"{arguments.page}.png"
    lines = [HEAD.format(title=title, command=command, machine=machine(next(iter(reports.values()))), chart=chart)]
    for name, report in reports.items():
        lines += section(name, report)
    (ROOT / "docs" / arguments.page).with_suffix(".md").write_text("\n".join(lines))
    draw(reports, ROOT / "docs" / chart)
    if arguments.page == "performance" and all(name in reports for _, name, _ in OF_README):
        readme, begin, end = ROOT / "README.md", "<!-- measured -->\n", "<!-- end of measured -->\n"
        measured = begin + "\n".join(of_readme(reports)) + f"\n{end}"
        readme.write_text(re.sub(f"{begin}.*{end}", lambda _: measured, readme.read_text(), flags=re.DOTALL))


if __name__ == "__main__":
    main()
