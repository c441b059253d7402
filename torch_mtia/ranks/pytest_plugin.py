"""pytest -p torch_mtia.ranks.pytest_plugin: the fixture `start_ranks`, for tests of several processes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from torch_mtia.ranks import Ranks, StartRanks


@pytest.fixture(scope="module")
def start_ranks() -> Iterator[StartRanks]:
    """Returns `Ranks(...)`: within a test module, the same processes for the same arguments.

    Processes that have ended, or were ended because a test left them out of step, are replaced.
    """
    started: dict[str, Ranks] = {}

    def start(*args: Any, **options: Any) -> Ranks:
        key = repr((args, options))
        if key in started and not started[key].alive:
            started.pop(key).stop()
        if key not in started:
            started[key] = Ranks(*args, **options)
        return started[key]

    yield start
    for ranks in started.values():
        ranks.stop()
