"""Records the memory of a training step, saves the snapshot and draws it: python examples/memory_snapshot.py
[--picture FILE]

The snapshot itself is written to snapshot.pickle, for https://docs.pytorch.org/memory_viz.
"""

from __future__ import annotations

import argparse
import pickle
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

Record = dict[str, Any]


def record() -> Record:
    """The history of a step of training after a first one, and what is in memory in the middle of a third."""
    model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(4))).to("mtia")
    optimizer = torch.optim.AdamW(model.parameters())

    def forward() -> torch.Tensor:
        inputs = torch.randn(512, 1024, device="mtia")
        return F.mse_loss(model(inputs), inputs)

    def step() -> None:
        optimizer.zero_grad()
        forward().backward()
        optimizer.step()

    step()
    torch.mtia.record_memory_history("all", "python", 100_000)
    step()
    loss = forward()
    snapshot: Record = torch.mtia.snapshot()
    torch.mtia.record_memory_history(None)
    loss.backward()
    return snapshot


def owner(block: Record) -> str:
    """The function of this file that a block was allocated for, or that it is older than the history."""
    names = [frame["name"] for frame in block.get("frames", ()) if frame["filename"].endswith(Path(__file__).name)]
    return names[0] if names else "before"


def draw(snapshot: Record, picture: Path) -> None:
    """Above the bytes in use from one event of the history to the next, below the segments with their blocks."""
    import matplotlib.pyplot as plt
    from matplotlib.patches import Patch

    sign = {"alloc": 1, "free_completed": -1}
    changes = [
        sign[entry["action"]] * entry["size"] for entry in snapshot["device_traces"][0] if entry["action"] in sign
    ]
    at_the_end = sum(
        block["requested_size"]
        for segment in snapshot["segments"]
        for block in segment["blocks"]
        if block["state"] == "active_allocated"
    )
    in_use = list(accumulate(changes, initial=at_the_end - sum(changes)))
    figure, (above, below) = plt.subplots(2, figsize=(12, 6), layout="constrained", height_ratios=(1, 1.4))
    above.fill_between(range(len(in_use)), [size / 2**20 for size in in_use], step="post", alpha=0.6)
    above.set(title="memory in use", xlabel="allocations and frees", ylabel="MiB", xlim=(0, len(in_use) - 1))

    segments = sorted(snapshot["segments"], key=lambda segment: int(segment["address"]))
    colors: dict[str, str] = {}
    for row, segment in enumerate(segments):
        for block in segment["blocks"]:
            used = block["state"] != "inactive"
            color = colors.setdefault(owner(block), f"C{len(colors)}") if used else "white"
            left = (block["address"] - segment["address"]) / 2**20
            below.broken_barh(
                [(left, block["size"] / 2**20)], (row - 0.4, 0.8), color=color, edgecolor="black", linewidth=0.4
            )
    below.set_yticks(range(len(segments)), [segment["segment_type"] for segment in segments])
    below.set(title="segments and their blocks, by the function that allocated them; white: free", xlabel="MiB")
    figure.legend(handles=[Patch(color=color, label=name) for name, color in colors.items()], loc="outside right lower")
    figure.savefig(picture, dpi=90)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--picture", type=Path, help="a PNG of the snapshot; needs matplotlib")
    arguments = parser.parse_args()
    snapshot = record()
    Path("snapshot.pickle").write_bytes(pickle.dumps(snapshot))
    segments = snapshot["segments"]
    allocated = sum(segment["allocated_size"] for segment in segments)
    reserved = sum(segment["total_size"] for segment in segments)
    print(f"{len(segments)} segments, {allocated / 2**20:.1f} of {reserved / 2**20:.1f} MiB in use")
    if arguments.picture:
        draw(snapshot, arguments.picture)


if __name__ == "__main__":
    main()
