"""Trains the small GPT of train_text.py on several devices, one to a process, with its parameters, their gradients and
the optimizer's state divided among them (FSDP2). The losses are those of one process:

    python examples/train_fsdp2.py
    torchrun --nproc-per-node=2 examples/train_fsdp2.py

With --checkpoint FOLDER it saves as it goes, and starts from the newest checkpoint there, whatever number of processes
wrote it. So `torchrun --max-restarts=1` goes on when a process dies.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint import load, save  # type: ignore[attr-defined]
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.profiler import profile, schedule
from tqdm import tqdm
from train_text import BATCH_SIZE, GPT, MAX_GRADIENT_NORM, Shape, cross_entropy, text
from training import Batch, at_least_one

CONTEXT = 64  # characters
LEARNING_RATE = 1e-3
SHOWN_STEPS = 10  # a loss is printed every so many
TRACED_STEPS = 2


def join_group() -> torch.device:
    """Makes a group of torchrun's processes, or of this one alone. Returns the device of this one."""
    accelerator = torch.accelerator.current_accelerator()
    assert accelerator is not None, "there is no device; `python -m torch_mtia` tells why"
    device = torch.device(accelerator.type, int(os.environ.get("LOCAL_RANK", 0)))
    torch.accelerator.set_device_index(device)
    if dist.is_torchelastic_launched():
        dist.init_process_group(device_id=device)
    else:
        dist.init_process_group(device_id=device, init_method="tcp://localhost:0", rank=0, world_size=1)
    return device


def shard(model: GPT, bfloat16: bool) -> None:
    """Each block is a unit: its parameters are gathered while the block before it runs, and freed behind it."""
    dtype = torch.bfloat16 if bfloat16 else None
    for unit in (*model.blocks, model):
        output_dtype = torch.float32 if unit is model else None
        fully_shard(unit, mp_policy=MixedPrecisionPolicy(dtype, torch.float32, output_dtype))


class Training:
    """A network in training. What is saved of it does not depend on the number of processes."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.95))
        self.losses: list[torch.Tensor] = []  # of all processes

    def step(self, inputs: torch.Tensor, targets: torch.Tensor) -> None:
        """One step on this process's part of a batch. Waits neither for the device nor for other processes."""
        loss = cross_entropy(self.model(inputs), targets)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), MAX_GRADIENT_NORM)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.losses.append(loss.detach())
        dist.all_reduce(self.losses[-1], dist.ReduceOp.AVG)

    def state_dict(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer, "losses": [loss.item() for loss in self.losses]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        self.losses = [torch.tensor(loss) for loss in state["losses"]]


def newest(folder: Path) -> Path | None:
    """The last checkpoint that is whole: its metadata are written at the end."""
    return max((path.parent for path in folder.glob("step*/.metadata")), default=None)


def parts(batches: Iterator[Batch], device: torch.device) -> Iterator[Batch]:
    """What this process has of each batch."""
    rank, size = dist.get_rank(), dist.get_world_size()
    for inputs, targets in batches:
        yield inputs.chunk(size)[rank].to(device), targets.chunk(size)[rank].to(device)


def traced(path: Path, steps: int) -> profile:
    """Writes what the last of the steps do: operators of the host, work in the device's streams, one row for each."""
    return profile(
        schedule=schedule(wait=max(steps - TRACED_STEPS - 1, 0), warmup=1, active=TRACED_STEPS),
        on_trace_ready=lambda result: result.export_chrome_trace(str(path)),
    )


def train(device: torch.device, options: argparse.Namespace) -> list[float]:
    """The losses."""
    source = text()
    shape = Shape(alphabet=len(source.alphabet), context=CONTEXT)
    torch.manual_seed(options.seed)  # all processes make the same network, and keep a part of it
    model = GPT(shape).to(device)
    shard(model, options.bfloat16)
    training = Training(model)
    if options.checkpoint and (path := newest(options.checkpoint)):
        load({"training": training}, checkpoint_id=path)
    start = len(training.losses)
    batches = itertools.islice(source.batches(options.steps, shape.context, options.seed), start, None)
    is_first = dist.get_rank() == 0
    with (
        tqdm(total=options.steps, initial=start, unit="step", disable=not is_first) as progress,
        traced(options.trace, options.steps - start) if options.trace and is_first else nullcontext() as trace,
    ):
        for step, (inputs, targets) in enumerate(parts(batches, device), start + 1):
            training.step(inputs, targets)
            progress.update()
            if options.checkpoint and step % options.save_every == 0:
                save({"training": training}, checkpoint_id=options.checkpoint / f"step{step:06}")
            if step % SHOWN_STEPS == 0:
                progress.set_postfix(loss=f"{training.losses[-1].item():.3f}")  # waits for the device
            if trace:
                trace.step()
    return [loss.item() for loss in training.losses]


def arguments() -> argparse.Namespace:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--steps", type=at_least_one, default=50)
    options.add_argument("--bfloat16", action="store_true", help="compute in bfloat16; parameters stay float32")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--checkpoint", type=Path, metavar="FOLDER", help="save there, and start from what is there")
    options.add_argument("--save-every", type=at_least_one, default=20, metavar="STEPS")
    options.add_argument("--trace", type=Path, metavar="FILE.json", help="profile the last steps of the first process")
    options.add_argument("--losses", type=Path, metavar="FILE.json", help="write the losses")
    return options.parse_args()


def main() -> None:
    options = arguments()
    device = join_group()
    if BATCH_SIZE % dist.get_world_size():
        raise SystemExit(f"a batch of {BATCH_SIZE} is not divided by {dist.get_world_size()} processes")
    losses = train(device, options)
    if dist.get_rank() == 0:
        for step in range(SHOWN_STEPS, len(losses) + 1, SHOWN_STEPS):
            print(f"step {step:4}: loss {losses[step - 1]:.3f}")
        if options.losses:
            options.losses.write_text(json.dumps(losses))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
