"""What compiled code checks, and calls, before each graph."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch_mtia import _C
from torch_mtia.upstream_gates.ours import is_ours

Function = Callable[..., Any]


def store_weak_references(_original: Function) -> Function:
    from torch._dynamo import graph_bytecode_inputs

    return _C._make_store_weak_references(graph_bytecode_inputs.index_to_external_object_weakref)


def guard_on_numerics(original: Function) -> Function:
    from torch_mtia.numerics_mode import numerics

    @functools.wraps(original)
    def GLOBAL_STATE(self: Any, guard: Any) -> None:
        original(self, guard)
        graph = getattr(self.check_fn_manager.output_graph, "graph", None)  # what is exported has none here
        if graph is None or not is_ours(list(graph.nodes)):
            return
        mode = numerics.current()
        code = [f"torch_mtia.numerics.current() == {mode!r}"]
        self.guard_manager.root.add_lambda_guard(lambda _: numerics.current() == mode, code, guard.user_stack)

    return GLOBAL_STATE
