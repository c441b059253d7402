"""What compiled code calls before each graph, as builtin functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch_mtia import _C

Function = Callable[..., Any]


def store_weak_references(_original: Function) -> Function:
    from torch._dynamo import graph_bytecode_inputs

    return _C._make_store_weak_references(graph_bytecode_inputs.index_to_external_object_weakref)
