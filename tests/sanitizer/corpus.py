"""What the programs of this folder are made of."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Program:
    """`text` has the word MEND on lines of its own. Without them it has one fault; with `mend` in their place, none.
    A program begins with `main`, the current stream, and `side` and `third`, two others, all idle."""

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
