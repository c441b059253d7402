"""Work and memory of the device, credited to the operators that caused them.

PyTorch's profiler does that for a literal list of devices, which lacks `mtia`; see upstream_gates/table.py.
"""

from __future__ import annotations

import bisect
import itertools
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from torch._C._autograd import DeviceType
from torch.autograd.profiler_util import MEMORY_EVENT_NAME, FunctionEvent


def credit_operators(events: Sequence[FunctionEvent], result: Any, device_type: DeviceType) -> None:
    """Does for `device_type` what `torch.autograd.profiler.profile._parse_kineto_results` does for others.

    `events` is what it made of `result`: operators and the device's work, not yet nested.
    """
    _credit_time(events, device_type)
    _credit_memory(events, result, device_type)


def _is_operator(event: FunctionEvent) -> bool:
    return event.device_type == DeviceType.CPU and not event.is_async and event.linked_correlation_id == 0


def _credit_time(events: Iterable[FunctionEvent], device_type: DeviceType) -> None:
    work: defaultdict[int, list[FunctionEvent]] = defaultdict(list)
    for event in events:
        if event.device_type == device_type and event.linked_correlation_id:
            work[event.linked_correlation_id].append(event)
    for event in events:
        if _is_operator(event):
            for item in work.get(event.id, ()):
                event.append_kernel(item.name, item.device_index, item.time_range.elapsed_us())


def _credit_memory(events: Iterable[FunctionEvent], result: Any, device_type: DeviceType) -> None:
    """Credits what was allocated and freed within an event's time; what no event encloses has an event of its own."""
    start = result.trace_start_ns()
    records = sorted(
        ((record.start_ns() - start) / 1000, record.nbytes())
        for record in result.events()
        if record.name() == MEMORY_EVENT_NAME and record.device_type() == device_type
    )
    if not records:
        return
    times = [time for time, _ in records]
    sums = [0, *itertools.accumulate(nbytes for _, nbytes in records)]
    for event in events:
        if event.device_type == DeviceType.CPU:
            first = bisect.bisect_left(times, event.time_range.start)
            last = bisect.bisect_right(times, event.time_range.end)
            event.device_memory_usage += sums[last] - sums[first]
