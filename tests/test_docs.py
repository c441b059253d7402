"""The documents say what is true of the tree they lie in."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from torch_mtia import environment

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/*.md")])


def relative_links(document: Path) -> list[str]:
    text = re.sub(r"```.*?```|`[^`\n]*`", "", document.read_text(), flags=re.DOTALL)  # code is not a link
    targets = re.findall(r"\[[^\]]*\]\(([^)\s]+)\)", text)
    return [target.partition("#")[0] for target in targets if not re.match(r"[a-z]+:|#", target)]


def test_the_table_of_settings_is_that_of_the_code() -> None:
    assert environment.markdown_table() in (ROOT / "docs" / "environment.md").read_text()


@pytest.mark.parametrize("command", ["make demo", "make test"])
def test_the_readme_names_the_commands(command: str) -> None:
    assert command in (ROOT / "README.md").read_text()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_relative_links_lead_somewhere(document: Path) -> None:
    broken = [target for target in relative_links(document) if not (document.parent / target).exists()]
    assert not broken


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_named_in_the_text_exist(document: Path) -> None:
    named = re.findall(
        r"`((?:csrc|torch_mtia|tests|tools|benchmarks|examples|docs|yaml)/[\w./-]+\.\w+)`", document.read_text()
    )
    missing = [path for path in named if not (ROOT / path).exists()]
    assert not missing


def test_the_differences_that_show_how_to_add_an_operator_are_in_the_tree() -> None:
    section = (ROOT / "docs" / "development.md").read_text().partition("## Adding an operator")[2].partition("\n## ")[0]
    blocks = re.findall(r"^ # (\S+)\n((?:\+.*\n)+)", section, re.MULTILINE)
    assert len(blocks) == 6
    for path, lines in blocks:
        added = "".join(line.removeprefix("+") for line in lines.splitlines(keepends=True))
        assert added in (ROOT / path).read_text(), path
