"""Captures a function in a graph, the way a program does, and asks whether a capture is under way."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

T = TypeVar("T")


def is_capturing() -> bool:
    return bool(torch.mtia.is_current_stream_capturing())  # type: ignore[attr-defined]


def capture(
    function: Callable[[], T], pool: tuple[int, int] | None = None, stream: torch.mtia.Stream | None = None
) -> tuple[torch.mtia.MTIAGraph, T]:
    """The graph, and what the function returned while it was captured."""
    graph = torch.mtia.MTIAGraph()
    with torch.mtia.graph(graph, pool=pool, stream=stream):
        result = function()
    return graph, result
