"""The page of the benchmarks states baselines, units and missed targets; README's table is built from its groups."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))

import report

pytestmark = pytest.mark.in_tree("reports of benchmarks name mtia")

ENVIRONMENT = {
    "date": "2026-01-31",
    "cores": "2",
    "CPU": "processor",
    "CPU capability": "AVX2",
    "torch": "2.13.0",
    "python": "3.11",
    "threads": "2",
    "settings": "",
}


def row(name: str, mtia: float, baseline: float | None, target: str = "", passed: bool | None = None) -> dict[str, Any]:
    ratio = None if baseline is None else baseline / mtia
    values = {"name": name, "mtia": mtia, "baseline": baseline, "ratio": ratio, "target": target, "passed": passed}
    return values | {"bound": "", "of_bound": None, "rate": ""}


def group(name: str, baseline: str, *rows: dict[str, Any], unit: str = "us", **values: Any) -> dict[str, Any]:
    ratio = rows[0]["ratio"]
    return {
        "name": name,
        "baseline": baseline,
        "unit": unit,
        "about": "",
        "rows": list(rows),
        "ratio": ratio,
        "target": "",
        "passed": None,
    } | values


def reports(**groups: list[dict[str, Any]]) -> dict[str, report.Report]:
    return {name: {"about": "About.", "environment": ENVIRONMENT, "groups": each} for name, each in groups.items()}


SMALL = group(
    "small operators",
    "the CPU",
    row("add", 2.0, 1.0, ">= 0.90", False),
    row("mul", 1.0, 1.0, ">= 0.90", True),
    target=">= 0.97",
    passed=False,
)
MEMORY = group("peak memory of a training step", "Inductor", row("bert", 174.0, 134.0), unit="MiB")
LAUNCH = group("launch", "", row("inline", 0.25, None, "<= 0.2 us", False))


def test_the_page_counts_its_targets_and_lists_the_missed_ones_with_links() -> None:
    page = report.page("performance", reports(eager=[SMALL, MEMORY], device=[LAUNCH]))
    assert "Of 4 targets, 3 are missed:" in page
    assert "| [small operators](#small-operators) | the CPU | 3 | 2 | add: 0.50; geometric mean: 0.50 |" in page
    assert "| [launch](#launch) | - | 1 | 1 | inline: 0.25 us |" in page


def test_each_table_states_its_baseline_and_its_unit() -> None:
    page = report.page("performance", reports(eager=[SMALL, MEMORY]))
    assert "### small operators\n\nBaseline: the CPU.\n\n| case | mtia (us) | baseline (us) | ratio | target |" in page
    assert "Baseline: Inductor.\n\n| case | mtia (MiB) | baseline (MiB) | ratio | target |" in page


def test_an_empty_target_is_a_dash() -> None:
    assert "| bert | 174 | 134 | 0.77 | - |" in report.page("performance", reports(compile=[MEMORY]))


def test_a_share_of_a_bound_names_the_bound_and_the_rate() -> None:
    bounded = row("add", 1.0, 1.0) | {"bound": "copy", "of_bound": 1.25, "rate": "12.5 GB/s"}
    page = report.page("performance", reports(eager=[group("small operators", "the CPU", bounded)]))
    assert "| add | 1.00 | 1.00 | 1.00 | - | 1.25 copy | 12.5 GB/s |" in page


def test_the_readme_names_the_baseline_of_each_row_and_shows_slower_groups(tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text("before\n<!-- measured -->\nold\n<!-- end of measured -->\nafter\n")
    empty: dict[str, list[dict[str, Any]]] = {name: [] for name in report.OF_README}
    report.write_readme(readme, reports(**(empty | {"eager": [SMALL], "compile": [MEMORY]})))
    text = readme.read_text()
    link = "[small operators](docs/performance.md#small-operators)"
    assert f"| {link} | the CPU | 2 | 0.50 (0.50 to 1.00) | `python benchmarks/eager.py` |" in text
    assert "| Inductor | 1 | 0.77 | `python benchmarks/compile.py` |" in text
    assert "2 of 3 targets are missed" in text
    assert text.startswith("before\n")
    assert text.endswith("<!-- end of measured -->\nafter\n")
    assert "old" not in text


def test_the_chart_leaves_out_ratios_of_memory_and_is_sorted_by_speed() -> None:
    faster = group("captured graphs", "the CPU", row("step", 1.0, 2.0))
    groups = report.compared(reports(eager=[SMALL, MEMORY], graphs=[faster], device=[LAUNCH]))
    assert [each["name"] for each in groups] == ["captured graphs", "small operators"]
    assert report.chart_title(groups) == "mtia is as fast as its baseline, or faster, in 1 of 2 groups"


def test_a_ratio_beyond_the_chart_is_drawn_at_its_edge_with_a_label(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the chart is drawn by matplotlib")
    outlier = group("vector add", "the interpreter", row("vector add", 1.0, 888.0))
    report.draw(reports(eager=[outlier, SMALL]), tmp_path / "chart.svg")
    assert "888" in (tmp_path / "chart.svg").read_text()
