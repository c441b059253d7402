"""Profiles two streams at work and draws the trace: python examples/profile_step.py [--picture FILE]

The trace itself, for chrome://tracing or https://ui.perfetto.dev, is written to trace.json.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from torch.profiler import profile, record_function

Event = dict[str, Any]


def step(model: torch.nn.Module, inputs: torch.Tensor, other: torch.Stream) -> None:
    """A forward and backward pass, and meanwhile, in another stream, the next inputs."""
    with record_function("next inputs"), other:
        torch.randn_like(inputs).tanh_()
    with record_function("forward"):
        loss = model(inputs).square().mean()
    with record_function("backward"):
        loss.backward()


def record(path: Path) -> profile:
    """Warms up, then writes the trace of one step."""
    model = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(2))).to("mtia")
    inputs = torch.randn(512, 512, device="mtia")
    other = torch.Stream("mtia")
    step(model, inputs, other)
    torch.mtia.synchronize()
    result: profile
    with profile() as result:
        step(model, inputs, other)
    result.export_chrome_trace(str(path))
    return result


def rows_of(trace: list[Event]) -> dict[str, list[Event]]:
    """What the picture shows: the host's threads with their operators and ranges, and the device's streams."""
    rows: dict[str, list[Event]] = {}
    for event in trace:
        kind = event.get("cat")
        if kind in ("cpu_op", "user_annotation"):
            rows.setdefault(f"thread {event['tid']}", []).append(event)
        elif kind == "mtia_ccp_events":
            rows.setdefault(f"mtia:{event['pid']} stream {event['tid']}", []).append(event)
    return dict(sorted(rows.items(), reverse=True))


def depth(event: Event, row: list[Event]) -> int:
    """How many events of the row enclose it."""
    end = event["ts"] + event["dur"]
    return sum(other is not event and other["ts"] <= event["ts"] and end <= other["ts"] + other["dur"] for other in row)


def draw(trace: list[Event], picture: Path) -> None:
    """Boxes for events, arrows from calls to the work they submitted."""
    import matplotlib.pyplot as plt

    rows = rows_of(trace)
    start = min(event["ts"] for row in rows.values() for event in row)
    end = max(event["ts"] + event["dur"] for row in rows.values() for event in row)
    figure, axes = plt.subplots(figsize=(12, 4.5), layout="constrained")
    bottoms: dict[str, float] = {}
    top = 0.0
    for name, row in rows.items():
        bottoms[name] = top
        for event in row:
            bottom = top + 0.8 * depth(event, row)
            left = (event["ts"] - start) / 1000
            color = f"C{sum(map(ord, event['name'])) % 10}"
            axes.broken_barh(
                [(left, event["dur"] / 1000)], (bottom, 0.7), color=color, edgecolor="black", linewidth=0.3
            )
            characters = int(150 * event["dur"] / (end - start))
            label = event["name"].removeprefix("aten::")[:characters] if characters > 3 else ""
            axes.text(left, bottom + 0.35, f" {label}", fontsize=7, va="center")
        top += 0.8 * (1 + max(depth(event, row) for event in row)) + 0.6
    flows: dict[int, list[Event]] = {}
    for event in trace:
        if event.get("cat") == "ac2g":
            flows.setdefault(event["id"], []).append(event)
    for begin, finish in (sorted(flow, key=lambda event: str(event["ph"]), reverse=True) for flow in flows.values()):
        points = [
            ((begin["ts"] - start) / 1000, bottoms.get(f"thread {begin['tid']}", 0)),
            ((finish["ts"] - start) / 1000, bottoms[f"mtia:{finish['pid']} stream {finish['tid']}"] + 0.7),
        ]
        axes.annotate("", points[1], points[0], arrowprops={"arrowstyle": "->", "color": "gray", "linewidth": 0.4})
    axes.set_yticks([bottom + 0.35 for bottom in bottoms.values()], list(bottoms))
    axes.set_xlabel("milliseconds")
    figure.savefig(picture, dpi=90)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--picture", type=Path, help="a PNG of the trace; needs matplotlib")
    arguments = parser.parse_args()
    path = Path("trace.json")
    result = record(path)
    print(result.key_averages().table(sort_by="self_device_time_total", row_limit=8))
    if arguments.picture:
        draw(json.loads(path.read_text())["traceEvents"], arguments.picture)


if __name__ == "__main__":
    main()
