"""Writes a page of docs/ and its chart from what the benchmarks saved; with `performance`, README's table too.

    python benchmarks/report.py PAGE FILE.json ...

The files are those of `--json`, one per benchmark; the name of a file is the name of its benchmark.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Report = dict[str, Any]  # the content of a file
Group = dict[str, Any]  # one of its groups, a timing.GroupResult

ROOT = Path(__file__).parent.parent

# The title of a page, and what wrote it.
PAGES = {
    "performance": ("Performance", "`make bench`"),
    "performance-avx2": (
        "Performance with AVX2",
        "`make bench-avx2`, which disables AVX-512 and AMX for both sides,",
    ),
}
HEAD = """# {title}

Written by {command}
on {machine}.

Each table compares `mtia` with one baseline, which the line above it names. Values are medians for one operation, in
the unit of their column. `ratio` is the baseline's value divided by that of `mtia`: above 1, `mtia` is faster, or takes
less memory. `target` is what a case should reach; a target of 0.97 means as fast, within noise. `of bound` is the time
that library code on this machine takes for the same amount of work, divided by that of `mtia`: `copy` is PyTorch's copy
of as many bytes, `matmul` is the fastest square matmul of MKL and oneDNN for as many operations. These bounds are
measurements, not limits of the hardware: code that writes less than a copy, or a faster matmul, exceeds 1. `rate` is
what `mtia` reached, for the same bytes or operations.
[benchmarks/README.md](../benchmarks/README.md) describes how the figures are measured.

![The ratios of each group]({chart})
"""

# The groups in README's table, in its order: faster and slower ones.
OF_README = {
    "start": ["importing torch", "first tensor of a process"],
    "device": ["chains of small operators", "chains of large operators"],
    "eager": ["small operators", "large operators", "training steps"],
    "graphs": ["captured graphs"],
    "triton_kernels": ["Triton kernels", "Triton matmul in fp32", "vector add and the interpreter"],
    "compile": [
        "compiled programs and compiled CPU code",
        "compiled programs and eager CPU code",
        "compiled models",
        "cold start",
        "peak memory of a training step",
    ],
    "kernels": ["operators as Triton kernels"],
    "distributed": ["collectives of 2 ranks"],
    "sanitizing": ["sanitized training steps", "sanitized Triton kernels"],
}

AS_FAST = 0.97  # less is noise
CHART_RANGE = (1 / 64, 32)  # ratios outside of it are drawn at its ends, with a label


def machine(report: Report) -> str:
    about = report["environment"]
    return (
        f"{about['date']}, with {about['cores']} cores of an {about['CPU']} ({about['CPU capability']}), "
        f"torch {about['torch']}, Python {about['python']}"
    )


def value(number: float | None) -> str:
    return "-" if number is None else f"{number:,.{2 if number < 100 else 0}f}"


def ratio(number: float | None) -> str:
    return "-" if number is None else f"{number:.{2 if number < 100 else 0}f}"


def target(result: dict[str, Any]) -> str:
    return (result["target"] or "-") + (", missed" if result["passed"] is False else "")


def groups_of(reports: dict[str, Report]) -> Iterator[Group]:
    return (group for report in reports.values() for group in report["groups"])


def link(group: Group, page: str = "") -> str:
    return f"[{group['name']}]({page}#{group['name'].lower().replace(' ', '-')})"


def count(amount: int, what: str) -> str:
    return f"{amount} {what}{'' if amount == 1 else 's'}"


# The page ------------------------------------------------------------------------------------------------------------


def missed_of(group: Group) -> list[str]:
    """Which targets a group misses, each with its ratio or, where the target is a time, with the time."""
    missed = [
        f"{row['name']}: {ratio(row['ratio']) if '>=' in row['target'] else value(row['mtia']) + ' us'}"
        for row in group["rows"]
        if row["passed"] is False
    ]
    return [*missed, *([f"geometric mean: {ratio(group['ratio'])}"] if group["passed"] is False else [])]


def targets_of(group: Group) -> int:
    return sum(result["passed"] is not None for result in [*group["rows"], group])


def summary(reports: dict[str, Report]) -> list[str]:
    """How many targets there are, how many are missed, and which."""
    groups = list(groups_of(reports))
    missed = sum(len(missed_of(group)) for group in groups)
    lines = [f"Of {count(sum(map(targets_of, groups)), 'target')}, {missed} are missed:", ""]
    lines += ["| group | baseline | targets | missed | cases |", "|---|---|---|---|---|"]
    lines += [
        f"| {link(group)} | {group['baseline'] or '-'} | {targets_of(group)} | {len(names)} | {'; '.join(names)} |"
        for group in groups
        if (names := missed_of(group))
    ]
    return [*lines, ""]


def table(group: Group) -> list[str]:
    has_baseline, has_bound = bool(group["baseline"]), any(row["of_bound"] for row in group["rows"])
    unit = group["unit"]
    headings = ["case", f"mtia ({unit})"]
    headings += [f"baseline ({unit})", "ratio"] if has_baseline else []
    headings += ["target", *(["of bound", "rate"] if has_bound else [])]
    lines = [f"| {' | '.join(headings)} |", f"|{'---|' * len(headings)}"]
    for row in group["rows"]:
        cells = [row["name"], value(row["mtia"])]
        cells += [value(row["baseline"]), ratio(row["ratio"])] if has_baseline else []
        bound = f"{row['of_bound']:.2f} {row['bound']}" if row["of_bound"] else "-"
        cells += [target(row), *([bound, row["rate"] or "-"] if has_bound else [])]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def section(name: str, report: Report) -> list[str]:
    about = report["environment"]
    settings = f", `{about['settings']}`" if about["settings"] else ""
    lines = [f"## {name}", "", report["about"], ""]
    run = f"`python benchmarks/{name}.py`, threads of each process: {about['threads']}{settings}."
    lines += [*textwrap.wrap(run, 120, break_long_words=False, break_on_hyphens=False), ""]
    for group in report["groups"]:
        baseline = f"Baseline: {group['baseline']}." if group["baseline"] else "No baseline."
        lines += [f"### {group['name']}", "", f"{baseline} {group['about']}".rstrip(), "", *table(group), ""]
        if group["ratio"] is not None and len(group["rows"]) > 1:
            goal = f" (target: {target(group)})" if group["target"] else ""
            lines += [f"Geometric mean of the ratios: {ratio(group['ratio'])}{goal}.", ""]
    return lines


# The chart -----------------------------------------------------------------------------------------------------------


def compared(reports: dict[str, Report]) -> list[Group]:
    """The groups whose ratio is one of times, from the fastest to the slowest."""
    groups = [group for group in groups_of(reports) if group["ratio"] is not None and group["unit"] == "us"]
    return sorted(groups, key=lambda group: -group["ratio"])


def chart_title(groups: list[Group]) -> str:
    faster = sum(group["ratio"] >= AS_FAST for group in groups)
    return f"mtia is as fast as its baseline, or faster, in {faster} of {count(len(groups), 'group')}"


def draw(reports: dict[str, Report], picture: Path) -> None:
    """A line for each group: a dot for each case, and a bar at the geometric mean."""
    import matplotlib.pyplot as plt

    groups = compared(reports)
    lowest, highest = CHART_RANGE
    figure, axes = plt.subplots(figsize=(11, 1.6 + 0.33 * len(groups)), layout="constrained")
    for height, group in enumerate(groups):
        color = "tab:blue" if group["ratio"] >= AS_FAST else "tab:orange"
        ratios = [row["ratio"] for row in group["rows"]]
        if len(ratios) > 1:
            shown = [min(max(each, lowest), highest) for each in ratios]
            axes.plot(shown, [height] * len(shown), "o", color=color, alpha=0.35, markersize=6, markeredgewidth=0)
        mean = min(max(group["ratio"], lowest), highest)
        axes.plot([mean], [height], "|", color=color, markersize=14, markeredgewidth=3)
        beyond = [each for each in (min(ratios), max(ratios)) if not lowest <= each <= highest]
        for each in dict.fromkeys(beyond):
            edge, arrow = (highest, "→") if each > highest else (lowest, "←")
            axes.annotate(f"{arrow} {ratio(each)}", (edge, height), (6, 0), textcoords="offset points", va="center")
        axes.annotate(
            f"baseline: {group['baseline'].replace('`', '')}",
            (0, height),
            (-6, 0),
            xycoords=axes.get_yaxis_transform(),
            textcoords="offset points",
            ha="right",
            va="top",
            fontsize=7,
            color="dimgray",
            annotation_clip=False,
        )
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_xscale("log", base=2)
    exponents = range(round(math.log2(lowest)), round(math.log2(highest)) + 1)
    axes.set_xticks([2.0**e for e in exponents], [f"{2**e}" if e >= 0 else f"1/{2**-e}" for e in exponents])
    axes.set_yticks(range(len(groups)), [group["name"] for group in groups], va="bottom", fontsize=9)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", linewidth=0.3)
    axes.set(ylim=(len(groups) - 0.5, -0.5), xlim=(lowest * 0.8, highest * 2))
    axes.set_xlabel("speed relative to the baseline (above 1: mtia is faster)\ndots: cases; bars: their geometric mean")
    axes.set_title(f"{chart_title(groups)}\n{machine(next(iter(reports.values())))}", fontsize=11)
    figure.savefig(picture, dpi=90)


# README --------------------------------------------------------------------------------------------------------------


def of_readme(reports: dict[str, Report]) -> list[str]:
    lines = [f"Measured on {machine(next(iter(reports.values())))}.", ""]
    lines += ["| what | baseline | cases | ratio (lowest to highest) | command |", "|---|---|---|---|---|"]
    for name, wanted in OF_README.items():
        for group in reports[name]["groups"]:
            if group["name"] in wanted:
                ratios = [row["ratio"] for row in group["rows"]]
                spread = f" ({ratio(min(ratios))} to {ratio(max(ratios))})" if len(ratios) > 1 else ""
                cells = [link(group, "docs/performance.md"), group["baseline"], str(len(ratios))]
                cells += [ratio(group["ratio"]) + spread, f"`python benchmarks/{name}.py`"]
                lines.append(f"| {' | '.join(cells)} |")
    groups = list(groups_of(reports))
    missed, targets = sum(len(missed_of(group)) for group in groups), sum(map(targets_of, groups))
    return [*lines, "", f"{missed} of {targets} targets are missed; [the page](docs/performance.md) lists them."]


def write_readme(readme: Path, reports: dict[str, Report]) -> None:
    begin, end = "<!-- measured -->\n", "<!-- end of measured -->\n"
    measured = begin + "\n".join(of_readme(reports)) + f"\n{end}"
    readme.write_text(re.sub(f"{begin}.*{end}", lambda _: measured, readme.read_text(), flags=re.DOTALL))


def page(name: str, reports: dict[str, Report]) -> str:
    title, command = PAGES[name]
    head = HEAD.format(
        title=title, command=command, machine=machine(next(iter(reports.values()))), chart=f"images/{name}.png"
    )
    sections = [line for benchmark, report in reports.items() for line in section(benchmark, report)]
    return "\n".join([head, *summary(reports), *sections])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page", choices=PAGES)
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE.json")
    arguments = parser.parse_args()
    reports: dict[str, Report] = {file.stem: json.loads(file.read_text()) for file in arguments.files}
    docs = ROOT / "docs"
    (docs / f"{arguments.page}.md").write_text(page(arguments.page, reports))
    draw(reports, docs / "images" / f"{arguments.page}.png")
    if arguments.page == "performance" and reports.keys() >= OF_README.keys():
        write_readme(ROOT / "README.md", reports)


if __name__ == "__main__":
    main()
