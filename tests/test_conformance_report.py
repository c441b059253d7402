"""The page that the conformance suite writes, also in a browser."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from torch_mtia.conformance import results as r
from torch_mtia.conformance.report import save_html
from torch_mtia.conformance.results import Result, Run

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-headless-shell", "google-chrome"))), None)


@pytest.fixture
def page(tmp_path: Path) -> Path:
    """The report of a run with as many tests as a whole one, one of which failed."""
    dtypes = ("float32", "float64", "int64", "bool", "complex64")
    tests = [
        Result(f"operators/{check}/op{number}/{dtype}", r.PASSED, verdict=r.PASS)
        for number in range(700)
        for dtype in dtypes
        for check in ("forward", "out", "inplace", "noncontiguous", "extremal", "empty")
    ]
    message = "AssertionError: <!--<script></script><b>not close"
    tests.append(Result("operators/errors/op3", r.FAILED, kind="wrong", message=message, verdict=r.FAIL))
    run = Run({"device": "mtia:0", "time": "today", "command": "a command"}, tests)
    run.repeat = "a command --suite {suite} --test {test}"
    old = [Result(tests[0].test, r.CRASHED, verdict=r.FAIL), *tests[1:-1]]
    old.append(Result("operators/errors/op3", r.PASSED, verdict=r.PASS))
    save_html(run, tmp_path / "page.html", dataclasses.replace(run, results=old))
    return tmp_path / "page.html"


def page_in_chromium(address: str, *arguments: str, width: int = 1500) -> str:
    assert CHROMIUM is not None
    command = [
        CHROMIUM,
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--hide-scrollbars",
        f"--window-size={width},1200",
    ]
    process = subprocess.run([*command, *arguments, address], capture_output=True, text=True, timeout=120)
    assert process.returncode == 0, process.stderr
    return process.stdout


in_chromium = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium: make browser")


@in_chromium
@pytest.mark.parametrize(
    ("filters", "count"),
    [
        ("", 1),  # what is not as expected
        ("verdict=", 21001),
        ("verdict=&area=operators/out", 3500),
        ("verdict=&dtype=bool&area=operators/out", 700),
        ("verdict=&name=op69/", 30),
        ("verdict=pass&name=op3/", 30),
        ("verdict=&change=worse", 1),
        ("verdict=&change=better", 1),
    ],
)
def test_the_page_filters(page: Path, filters: str, count: int) -> None:
    shown = page_in_chromium(f"{page.as_uri()}#{filters}", "--dump-dom", "--virtual-time-budget=5000")
    assert re.search(rf'id="count"[^>]*>{count} tests', shown)


@in_chromium
def test_the_page_shows_all_in_a_browser(page: Path, tmp_path: Path) -> None:
    address = f"{page.as_uri()}#test=operators/errors/op3"
    shown = page_in_chromium(address, "--dump-dom", "--virtual-time-budget=5000")
    assert 'data-ready="yes"' in shown
    assert shown.count('data-operator="op') == 1
    assert 0 < shown.index("worse: 1") < shown.index("better: 1")
    assert "a command --suite operators --test operators/errors/op3" in shown
    whole = page_in_chromium(f"{page.as_uri()}#verdict=", "--dump-dom", "--virtual-time-budget=5000")
    assert whole.count('data-operator="op') == 700 * 5 + 1
    assert "&lt;/script&gt;&lt;b&gt;not close" in shown
    page_in_chromium(page.as_uri(), f"--screenshot={tmp_path / 'page.png'}")
    assert (tmp_path / "page.png").stat().st_size > 10_000


@in_chromium
def test_the_table_of_suites_fits_the_window_of_a_laptop(tmp_path: Path) -> None:
    verdicts = (r.PASS, r.XFAIL, r.SKIP, r.NOT_APPLICABLE, r.FLAKY, r.ON_CPU, r.FAIL, r.XPASS)
    tests = [Result(f"accelerator/{verdict}", r.PASSED, verdict=verdict) for verdict in verdicts]
    save_html(Run({"device": "mtia:0", "time": "today", "command": "a command"}, tests), tmp_path / "page.html")
    measure = """<script>
    for (const box of document.querySelectorAll("section, aside"))
      document.body.append(`${box.querySelector("h2").textContent}: ${box.scrollWidth - box.clientWidth} too wide. `);
    </script>"""
    (tmp_path / "page.html").write_text((tmp_path / "page.html").read_text().replace("</html>", measure))
    shown = page_in_chromium((tmp_path / "page.html").as_uri(), "--dump-dom", width=1300)
    assert "Suites: 0 too wide. " in shown
    assert not re.search(r": [1-9]\d* too wide", shown)


def test_the_page_contains_its_data_and_nothing_from_elsewhere(page: Path) -> None:
    text = page.read_text()
    data = json.loads(text.partition("const data = ")[2].partition(";\n")[0])
    assert len(data["tests"]) == 700 * 5 * 6 + 1
    assert data["details"]["operators/errors/op3"]["message"].endswith("<!--<script></script><b>not close")
    assert text.count("</script>") == text.count("<script") == 1
    assert "<!--" not in text
    assert not any(word in text for word in ("http://", "https://", "<link", "src="))
