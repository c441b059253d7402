"""Code that registers the kernels of a vendor's own, from a file in the dialect of PyTorch's native_functions.yaml.

- func: _int_mm(Tensor self, Tensor mat2) -> Tensor
  dispatch:
    PrivateUse1: int_mm
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torchgen
import yaml
from torchgen.api.types import DispatcherSignature
from torchgen.gen import LineLoader
from torchgen.model import FunctionSchema

KEY = "PrivateUse1"
PACKAGED = Path(torchgen.__file__).parent / "packaged" / "ATen" / "native" / "native_functions.yaml"


def generate_registration(overlay: Path, folder: Path) -> Path:
    """Writes registration.h, which declares a vendor's kernels, and registration.cpp, which registers them.

    Args:
        overlay: a file in the dialect of PyTorch's native_functions.yaml: `func` and, under `dispatch`, the kernel's
            name for PrivateUse1.
        folder: where the two files are written; it is created.

    Returns:
        The path of registration.cpp.

    Raises:
        ValueError: this PyTorch does not have an operator, or not with that signature; the message has file and line.
    """
    kernels = dict(_kernels(overlay))
    head = f"// Generated from {overlay.name}."
    declarations = [
        DispatcherSignature.from_schema(schema, symint=False).decl(name) for name, schema in kernels.items()
    ]
    header = [head, "#pragma once", "#include <ATen/core/Tensor.h>", *(f"{line};" for line in declarations)]
    rows = [f'  library.impl("{schema.name}", TORCH_FN({name}));' for name, schema in kernels.items()]
    source = [
        *(head, "#include <torch/library.h>", '#include "registration.h"'),
        *(f"TORCH_LIBRARY_IMPL(aten, {KEY}, library) {{", *rows, "}"),
    ]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "registration.h").write_text("\n".join([*header, ""]))
    (folder / "registration.cpp").write_text("\n".join([*source, ""]))
    return folder / "registration.cpp"


def _kernels(overlay: Path) -> Iterator[tuple[str, FunctionSchema]]:
    """The kernels' names, and the operators that they belong to."""
    upstream = {_name(row["func"]): row["func"] for row in yaml.safe_load(PACKAGED.read_text())}
    rows: list[dict[str, Any]] = yaml.load(overlay.read_text(), Loader=LineLoader) or []
    for row in rows:
        place = f"{overlay}:{row['__line__']}"
        func, dispatch = row.get("func", ""), row.get("dispatch", {})
        if upstream.get(_name(func)) != func:
            known = upstream.get(_name(func))
            hint = f"the signature is {known}" if known else "there is no such operator"
            raise ValueError(f"{place}: {func!r} is not an operator of this PyTorch: {hint}")
        kernel = dispatch.get(KEY)
        if not isinstance(kernel, str) or set(dispatch) - {KEY, "__line__"}:
            raise ValueError(f"{place}: `dispatch` must name one kernel, under the key {KEY}")
        yield kernel, FunctionSchema.parse(func)


def _name(func: str) -> str:
    return func.partition("(")[0]
