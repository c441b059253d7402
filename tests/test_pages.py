"""The code blocks of the pages do what the pages show.

The blocks of a page share one folder and run in order:

  ```python   a program, run in a process of its own. <!-- file: NAME --> above the block names its file.
              <!-- file: NAME, run below --> only writes it: a later block runs it.
  ```console  `$ ` begins a command; what follows is its output.
  ``` ```text the output of the program above, if no heading is between them. With <!-- file: NAME -->, a file.

`...` in an output matches anything, as in doctest. A program whose output is not shown must succeed.
<!-- not run: REASON --> above a block says why a page shows what is not run here. Other languages are not run.
"""

from __future__ import annotations

import difflib
import doctest
import re
import shlex
import subprocess
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.interpreter import clean_environment, run_python

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted(
    [
        *(ROOT / name for name in ("README.md", "benchmarks/README.md")),
        *ROOT.glob("docs/*.md"),
        *ROOT.glob("examples/**/README.md"),
    ]
)
TIME_LIMIT = 600  # seconds, of one program

FENCE = re.compile(
    r"(?P<notes>(?:<!-- (?:file|not run): (?:(?!-->).)*-->\s*)*)"
    r"^(?P<indent> *)```(?P<language>[\w+-]*)\n(?P<text>.*?)^ *```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass
class Block:
    line: int  # of the page, where its text begins
    language: str
    text: str
    notes: dict[str, str]
    section: int  # how many headings there are above it

    @property
    def is_output(self) -> bool:
        return self.language in ("", "text") and not self.notes


def blocks_of(page: str) -> list[Block]:
    blocks: list[Block] = []
    section = position = 0
    for match in FENCE.finditer(page):
        notes = re.findall(r"<!-- (file|not run): (.*?) -->", match["notes"], re.DOTALL)
        section += len(re.findall(r"^#+ ", page[position : match.start()], re.MULTILINE))
        position = match.end()
        line = page.count("\n", 0, match.start("text")) + 1
        blocks.append(Block(line, match["language"], textwrap.dedent(match["text"]), dict(notes), section))
    return blocks


def commands_of(block: Block) -> Iterator[tuple[int, str, str]]:
    """Of a console: the line, the command and the output of each."""
    text = block.text.replace("\\\n", "\\\0")  # a command may go on in the next line
    line = block.line
    for part in re.split(r"^(?=\$ )", text, flags=re.MULTILINE):
        command, _, output = part.partition("\n")
        if command.startswith("$ "):
            yield line, command[2:].replace("\\\0", "\\\n"), output
        line += part.count("\n") + part.count("\0")


def difference(expected: str, seen: str) -> str | None:
    expected, seen = ("".join(f"{line.rstrip()}\n" for line in text.rstrip().split("\n")) for text in (expected, seen))
    if doctest.OutputChecker().check_output(expected, seen, doctest.ELLIPSIS | doctest.DONT_ACCEPT_BLANKLINE):
        return None
    return "".join(difflib.ndiff(expected.splitlines(keepends=True), seen.splitlines(keepends=True)))


def failures(page: str, folder: Path) -> Iterator[tuple[int, str]]:
    """Lines of the page, and what is wrong there."""
    blocks = blocks_of(page)
    for index, block in enumerate(blocks):
        name, _, where = block.notes.get("file", f"program{index}.py").partition(", ")
        if "file" in block.notes:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(block.text)
        if "not run" in block.notes:
            continue
        if block.language == "console":
            commands = list(commands_of(block))
        elif block.language == "python" and where != "run below":
            (folder / name).write_text(block.text)
            following = blocks[index + 1] if index + 1 < len(blocks) else None
            is_shown = following is not None and following.is_output and following.section == block.section
            commands = [(block.line, f"python {name}", following.text if following and is_shown else "")]
        else:
            continue
        for line, command, expected in commands:
            status, seen = run_in_page(command, folder)
            if expected.strip():
                if found := difference(expected, seen):
                    yield line, f"$ {command}\n{found}"
            elif status != 0:
                yield line, f"$ {command}\nexit status {status}\n{seen}"


def arguments_of_python(command: str) -> list[str] | None:
    """Those of a command that needs no shell."""
    if re.search(r"[|&;<>$*?(){}`]", command):
        return None
    match shlex.split(command, comments=True):
        case ["python", "-m", module, *_] as words if module.startswith("torch_mtia"):
            return words[1:]
        case ["python", file, *_] as words if file.endswith(".py"):
            return words[1:]
    return None


def run_in_page(command: str, folder: Path) -> tuple[int, str]:
    environment = clean_environment()
    if arguments := arguments_of_python(command):
        finished = run_python(arguments, cwd=folder, environment=environment, timeout=TIME_LIMIT, merged=True)
        return finished.returncode, finished.stdout
    process = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=environment | {"PYTHONUNBUFFERED": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=TIME_LIMIT,
    )
    return process.returncode, process.stdout.decode(errors="replace")


@pytest.mark.in_tree("pages name mtia")
@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_blocks_of_a_page_do_what_it_shows(page: Path, tmp_path: Path) -> None:
    folder = tmp_path / "page"
    folder.mkdir()
    for name in ("benchmarks", "examples", "tests", "tools"):  # as if it were the folder of the sources
        (folder / name).symlink_to(ROOT / name)
    found = [f"{page.relative_to(ROOT)}:{line}: {text}" for line, text in failures(page.read_text(), folder)]
    if found:
        pytest.fail("\n".join(found), pytrace=False)


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_to_lines_lead_to_what_they_name(page: Path) -> None:
    wrong = []
    for text, target, number in re.findall(r"\[([^\]]+)\]\(([^)#\s]+)#L(\d+)\)", page.read_text()):
        name = re.split(r"::|\.", text.strip("`").removesuffix("()"))[-1]
        lines = (page.parent / target).read_text().splitlines()
        if not re.search(rf"\b{re.escape(name)}\b", lines[int(number) - 1]):
            there = [line for line, code in enumerate(lines, 1) if re.search(rf"\b{re.escape(name)}\b", code)]
            wrong.append(f"{text}: {target}#L{number} is not a line that has {name}; these are: {there}")
    if wrong:
        pytest.fail("\n".join(wrong), pytrace=False)
