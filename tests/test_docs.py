"""The documents say what is true of the tree they lie in."""

from __future__ import annotations

import inspect
import pkgutil
import re
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import get_origin

import pytest

from tools import reference, site_pages

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted(
    path for pattern in ("*.md", "docs/**/*.md", "benchmarks/*.md", "examples/**/*.md") for path in ROOT.glob(pattern)
)


def without_code(document: Path) -> str:
    return re.sub(r"^ *```.*?^ *```|`(?:[^`\n]|\n(?!\n))*`", "", document.read_text(), flags=re.DOTALL | re.MULTILINE)


def relative_links(document: Path) -> list[str]:
    targets = re.findall(r"\[[^\]]*\]\(([^)\s]+)\)", without_code(document))
    return [target for target in targets if not re.match(r"[a-z]+:", target)]


def anchors(document: Path) -> set[str]:
    """Of the headings, by the rules of GitHub, which mkdocs.yml follows, too. Of headings with the same text only the
    first: the two number them differently."""
    text = re.sub(r"^ *```.*?^ *```", "", document.read_text(), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#{1,6} +(.*?) *#*$", text, re.MULTILINE)
    texts = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading) for heading in headings]
    return {re.sub(r"[^\w\- ]", "", text.strip().lower()).replace(" ", "-") for text in texts}


def leads_somewhere(link: str, document: Path) -> bool:
    path, _, anchor = link.partition("#")
    target = document.parent / path if path else document
    if not target.exists():
        return False
    if lines := re.fullmatch(r"L(\d+)(?:-L(\d+))?", anchor):
        count = len(target.read_text().splitlines()) if target.is_file() else 0
        return 1 <= int(lines[1]) <= int(lines[2] or lines[1]) <= count
    return not anchor or (target.suffix == ".md" and anchor in anchors(target))


@pytest.mark.parametrize("page", [reference.COMMANDS, reference.SETTINGS], ids=lambda path: path.name)
def test_generated_text_is_that_of_the_code(page: Path) -> None:
    assert page.read_text() == reference.pages()[page], "make docs writes it"


@pytest.mark.parametrize("command", ["make demo", "make test"])
def test_the_readme_names_the_commands(command: str) -> None:
    assert command in (ROOT / "README.md").read_text()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_relative_links_lead_to_files_headings_and_lines_that_exist(document: Path) -> None:
    broken = [link for link in relative_links(document) if not leads_somewhere(link, document)]
    assert not broken


def test_an_anchor_is_that_of_a_heading_outside_of_code(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# `torch.compile`: [one](x.md), two & _C\n\n```\n# not a heading\n```\n[`a`](#no)\n")
    assert anchors(page) == {"torchcompile-one-two--_c"}
    assert relative_links(page) == ["x.md", "#no"]
    links = ("page.md", "#torchcompile-one-two--_c", "page.md#L6", "page.md#L2-L3", "#no", "page.md#L7", "none.md#no")
    assert [leads_somewhere(link, page) for link in links] == [True] * 4 + [False] * 3


def test_the_site_lists_each_page_once() -> None:
    listed = re.findall(r"^ +- .+: (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    pages = [str(page.relative_to(ROOT / "docs")) for page in ROOT.glob("docs/**/*.md")]
    assert sorted(listed) == sorted([*pages, "index.md"])  # index.md: README.md


@pytest.mark.parametrize(
    ("page", "link", "url", "expected"),
    [
        ("triton.md", "[a](../csrc/b.cpp#L12)", "https://x.org/y/", "[a](https://x.org/y/blob/HEAD/csrc/b.cpp#L12)"),
        ("triton.md", "[`a`](../csrc/b.cpp#L12)", None, "`a`"),
        ("triton.md", "[a](../README.md#install)", None, "[a](index.md#install)"),
        ("triton.md", "`[a](../b)`, [a](#b), [a](https://x.org), [a](faq.md)", None, None),
        ("index.md", "[a](docs/faq.md), ![b](docs/images/b.png)", None, "[a](faq.md), ![b](images/b.png)"),
        ("index.md", "[a](#install)\n```\n[a](docs/faq.md)\n```", None, None),
    ],
)
def test_links_on_the_site(page: str, link: str, url: str | None, expected: str | None) -> None:
    """`expected` is None where nothing changes."""
    place = SimpleNamespace(file=SimpleNamespace(src_uri=page))
    assert site_pages.on_page_markdown(link, page=place, config={"repo_url": url}) == (expected or link)


def public_names() -> list[tuple[str, object]]:
    """What docs/api.md lists."""
    names: list[tuple[str, object]] = []
    for place, options in re.findall(
        r"^::: (\S+)\n((?: {4}.*\n)*)", (ROOT / "docs" / "api.md").read_text(), re.MULTILINE
    ):
        members = re.search(r"members: \[(.*)\]", options)
        listed = pkgutil.resolve_name(place)
        if isinstance(listed, ModuleType):
            chosen = members[1].split(", ") if members else listed.__all__
            names += [(f"{place}.{name}", getattr(listed, name)) for name in chosen]
        else:
            names.append((place, listed))
    return names


def test_public_functions_and_classes_have_docstrings() -> None:
    documented = {
        name: inspect.getdoc(value)
        for name, value in public_names()
        if inspect.isroutine(value) or (inspect.isclass(value) and not get_origin(value))
    }
    assert "torch_mtia.fallback.deny" in documented
    assert not [name for name, text in documented.items() if not text]


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
