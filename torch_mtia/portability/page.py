"""A report as one page of HTML."""

from __future__ import annotations

import html as escape
from collections.abc import Sequence

from torch_mtia.portability import bound
from torch_mtia.portability.lines import described, resident, resources
from torch_mtia.portability.rows import COMPILES, FAILS, Row

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 72em; padding: 0 1em; color: #222; }
h2 { margin-top: 2em; } code, td { font-family: ui-monospace, monospace; font-size: 13px; }
table { border-collapse: collapse; width: 100%; } td, th { border: 1px solid #ccc; padding: .3em .6em; text-align: left;
vertical-align: top; } tr.bad { background: #fdd; } ul { margin: 0; padding-left: 1.2em; }
@media (prefers-color-scheme: dark) { body { background: #181818; color: #ddd; } tr.bad { background: #511; } }
"""
_COLUMNS = ("constants", "target", "result", "resources", "occupancy", "accesses")


def html(targets: Sequence[str], kernels: Sequence[Sequence[Row]], remarks: Sequence[str], first: str) -> str:
    """Returns the text of the page, which begins with `first`."""
    parts = [f"<p><b>{_text(first)}</b></p>"] if first else []
    parts += [f"<h1>Kernels on {_text(', '.join(targets))}</h1>"]
    parts += [_kernel(rows) for rows in kernels]
    if remarks:
        parts.append("<h2>Not shown</h2><ul>" + "".join(f"<li>{_text(each)}</li>" for each in remarks) + "</ul>")
    head = f'<meta charset="utf-8"><title>torch_mtia: kernels on GPUs</title><style>{_STYLE}</style>'
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>\n' + "\n".join(parts) + "\n</body></html>\n"


def _kernel(rows: Sequence[Row]) -> str:
    first = rows[0]
    head = "".join(f"<th>{name}</th>" for name in _COLUMNS)
    body = "\n".join(map(_row, rows))
    place = _text(f"{first.file}:{first.line}")
    return f"<h2>{_text(first.kernel)}</h2><p><code>{place}</code></p><table><tr>{head}</tr>\n{body}</table>"


def _row(row: Row) -> str:
    result = row.status + (f": {row.message}" if row.message else "")
    cells = [row.title, row.target, result]
    accesses = ""
    if row.status != FAILS:
        cells += [resources(row), resident(row)]
        starts = ("line ", "tensor ", "no ", "bank ")
        details = [line.strip() for line in list(described(row))[1:] if line.strip().startswith(starts)]
        if row.specialization.counts is not None:
            details.insert(0, bound.counted(row.specialization.counts))
        accesses = "<ul>" + "".join(f"<li>{_text(each)}</li>" for each in details) + "</ul>"
    cells += [""] * (5 - len(cells))
    bad = "" if row.status == COMPILES else ' class="bad"'
    return f"<tr{bad}>" + "".join(f"<td>{_text(cell)}</td>" for cell in cells) + f"<td>{accesses}</td></tr>"


def _text(text: str) -> str:
    return escape.escape(text)
