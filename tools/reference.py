"""Writes what the reference has from the code: docs/commands.md, docs/replacements.md, and the table of
docs/environment.md.

The options of a command are those of the parser that its main() makes. `make docs` runs this with the built package.
"""

from __future__ import annotations

import argparse
import importlib
import re
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from unittest import mock

from torch_mtia import environment
from torch_mtia._versions import SUPPORTED_TORCH
from torch_mtia.portability import pytest_plugin as portability_plugin
from torch_mtia.sanitizer import pytest_plugin as sanitizer_plugin
from torch_mtia.upstream_gates import GATES, GATES_OF_OTHER_NAMES, Gate, Reason

ROOT = Path(__file__).resolve().parent.parent
COMMANDS = ROOT / "docs" / "commands.md"
SETTINGS = ROOT / "docs" / "environment.md"
REPLACEMENTS = ROOT / "docs" / "replacements.md"

HEADING = """\
# Commands

`make docs` writes this page from the commands' own parsers. `--help` after a command prints the same.
"""

HEADING_OF_REPLACEMENTS = """\
# Replacements

`make docs` writes this page from the tables of [upstream_gates](../torch_mtia/upstream_gates).

Where PyTorch, Triton and libraries that use them have no way to register a device, this package replaces names of
theirs in the running process. A name is replaced when its module is imported.

**A replacement calls the original unless a tensor, a device or another argument is on this device.** If no argument
names a device, it calls the original unless this device is the process's accelerator. So programs for other devices
compute what they compute without this package. Tests check that for every row.

| to | do |
|---|---|
| see what a process has replaced | `torch_mtia.replacements()`: `module`, `name`, `reason`, `why`, `skipped` |
| see it at the command line | `python -m torch_mtia --verbose`, or `--replacements` for every row |
| leave libraries that use PyTorch alone | [`TORCH_MTIA_CLIENTS=0`](environment.md) |

A name that the installed version lacks, as may happen in a patch release of PyTorch, is left. The first use of the
device warns of it, and `skipped` says why.
"""


def commands() -> list[str]:
    """Returns the modules that `python -m` runs, in alphabetical order."""
    files = [*ROOT.glob("torch_mtia/*.py"), *ROOT.glob("torch_mtia/*/__main__.py")]
    runnable = [path.relative_to(ROOT) for path in files if '__name__ == "__main__"' in path.read_text()]
    return sorted(".".join(path.with_suffix("").parts) for path in runnable)


class _Parsed(Exception):
    """Ends a command where it would parse its arguments."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self.parser = parser


def _stop(parser: argparse.ArgumentParser, *_: object) -> None:
    raise _Parsed(parser)


def parser_of(command: str) -> argparse.ArgumentParser:
    """Returns the parser that the module's main() makes. Raises LookupError if main() parses nothing."""
    with mock.patch.object(argparse.ArgumentParser, "parse_args", _stop):
        try:
            importlib.import_module(command).main()
        except _Parsed as parsed:
            return parsed.parser
    raise LookupError(f"main() of {command} makes no parser")


class _PytestOptions(argparse.ArgumentParser):
    """Takes the options of a plug-in as pytest's parser does."""

    addoption = argparse.ArgumentParser.add_argument


def _pytest_parser(plugin: ModuleType) -> argparse.ArgumentParser:
    made = _PytestOptions(f"pytest -p {plugin.__name__}", description=plugin.__doc__, add_help=False)
    plugin.pytest_addoption(made)  # a parser with the one method that it calls
    return made


def _names(action: argparse.Action) -> str:
    """Returns the action as it is written on a command line."""
    if not action.option_strings:
        return f"`{action.metavar or action.dest}`"
    metavar = action.metavar or action.dest.upper()
    value = " ".join([*([metavar] if isinstance(metavar, str) else metavar), *(["..."] if action.nargs == "+" else [])])
    return ", ".join(f"`{option}{'' if action.nargs == 0 else f' {value}'}`" for option in action.option_strings)


def _plain(text: str) -> str:
    """Returns text in which nothing is Markdown."""
    return re.sub(r"([*|<])", r"\\\1", " ".join(text.split()))


def _filled(text: str) -> str:
    return textwrap.fill(" ".join(text.split()), width=120, break_long_words=False, break_on_hyphens=False)


def _section(parser: argparse.ArgumentParser) -> Iterator[str]:
    yield f"\n## {parser.prog}\n"
    if parser.description:
        yield _filled(parser.description) + "\n"
    yield "| argument | meaning |\n|---|---|"
    for action in parser._actions:
        if action.dest != "help":
            meaning = (action.help or "") % {**vars(action), "prog": parser.prog}
            yield f"| {_names(action)} | {_plain(meaning)} |"
    if parser.epilog:
        yield "\n" + _filled(parser.epilog)


def _replacements() -> Iterator[str]:
    yield HEADING_OF_REPLACEMENTS
    yield "| reason | names | of these, in the code of a function |\n|---|---|---|"
    for reason in Reason:
        rows = [gate for gate in GATES if gate.reason is reason]
        yield f"| {reason.value} | {len(rows)} | {sum(gate.edits_code for gate in rows)} |"
    yield f"| in all | {len(GATES)} | {sum(gate.edits_code for gate in GATES)} |"
    for reason in Reason:
        yield from _table_of_gates(reason.value, [gate for gate in GATES if gate.reason is reason])
    yield from _table_of_gates("For a device of [another name](privateuse1.md)", GATES_OF_OTHER_NAMES)


def _table_of_gates(heading: str, gates: Sequence[Gate]) -> Iterator[str]:
    yield f"\n## {heading[0].upper()}{heading[1:]}\n"
    yield "| name | PyTorch | why |\n|---|---|---|"
    for gate in sorted(gates, key=lambda gate: (gate.modules[0], gate.name)):
        versions = "all" if gate.versions == SUPPORTED_TORCH else ", ".join(f"{a}.{b}" for a, b in gate.versions)
        code = " A list in the function's code is made longer." if gate.edits_code else ""
        issue = f" [Report](upstream/{gate.issue})." if gate.issue else ""
        name = f"`{gate.modules[0]}`: `{gate.name}`"
        yield f"| {name} | {'any' if gate.is_of_a_client else versions} | {_plain(gate.why)}{code}{issue} |"


def pages() -> dict[Path, str]:
    """Returns the text of each page that has generated lines."""
    parsers = [*map(parser_of, commands()), *map(_pytest_parser, (portability_plugin, sanitizer_plugin))]
    lines = [HEADING.rstrip("\n"), *(line for parser in parsers for line in _section(parser))]
    settings = re.sub(
        r"^\| variable \|.*?(?=\n\n)",
        lambda _: environment.markdown_table(),
        SETTINGS.read_text(),
        count=1,
        flags=re.DOTALL | re.MULTILINE,
    )
    return {
        COMMANDS: "\n".join(lines) + "\n",
        REPLACEMENTS: "\n".join(_replacements()) + "\n",
        SETTINGS: settings,
    }


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text)
