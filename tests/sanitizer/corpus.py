"""What the programs of this folder are made of."""

from __future__ import annotations

import dataclasses
import importlib.util
import itertools
import tempfile
from pathlib import Path
from typing import Any

FOLDER = tempfile.TemporaryDirectory()
NUMBERS = itertools.count()


@dataclasses.dataclass(frozen=True)
class Program:
    """`text` has the word MEND on lines of its own. Without them it has one fault; with `mend` in their place, none.
    A program begins with `main`, the current stream, and `side` and `third`, two others, all idle; and with
    `triton_kernel`, which makes a kernel of a function's text."""

    name: str
    kind: str  # of the report
    text: str
    mend: str
    operators: tuple[str, ...]  # of the report: the later one, and the earlier one of a race

    @property
    def faulty(self) -> str:
        return self._with("pass")

    @property
    def mended(self) -> str:
        return self._with(self.mend)

    def _with(self, line: str) -> str:
        lines = []
        for each in self.text.strip().splitlines():
            indent = each[: len(each) - len(each.lstrip())]
            lines.append(indent + line if each.strip() == "MEND" else each)
        return "\n".join(lines) + "\n"


def triton_kernel(text: str) -> Any:
    """The function `kernel` of the text, as a Triton kernel: Triton reads its source from a file."""
    path = Path(FOLDER.name) / f"kernel_{next(NUMBERS)}.py"
    path.write_text(f"import triton\nimport triton.language as tl\n\n\n@triton.jit{text}")
    specification = importlib.util.spec_from_file_location(path.stem, path)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module.kernel
