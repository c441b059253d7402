"""What the demos share: the training loop, the record of a run, the loss curve, the comparison of two devices.

A demo is a function that trains on a named device and returns a `Run`, and a call of `main`. It draws parameters and
the order of the data on the CPU, so that every device sees the same numbers.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import cast

import matplotlib as mpl
import torch
from torch import nn
from tqdm import tqdm

from torch_mtia.backend import device_type

mpl.use("Agg")
from matplotlib import pyplot as plt

COMPARED_LOSSES = 20
MAX_RELATIVE_DIFFERENCE = 1e-4

Batch = tuple[torch.Tensor, torch.Tensor]  # inputs and targets


@dataclasses.dataclass(frozen=True)
class Score:
    """How good a trained network is on data that it has not seen: the name and the rules of one number."""

    name: str
    form: str  # a format specification
    max_difference: float  # between two devices

    def show(self, value: float) -> str:
        return f"{value:{self.form}}"


@dataclasses.dataclass(frozen=True)
class Run:
    device: str
    losses: list[float]  # one for each step
    score: float
    seconds: float  # of the steps
    fallbacks: dict[str, int]  # how often each operator ran in the CPU fallback, during the steps and the evaluation


@dataclasses.dataclass(frozen=True)
class Training:
    """A network in training, on its device."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    loss_function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    schedule: torch.optim.lr_scheduler.LRScheduler | None = None
    max_gradient_norm: float | None = None

    def step(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """One step on a batch that is on the device. Returns the loss without waiting for it."""
        self.optimizer.zero_grad()
        loss = self.loss_function(self.model(inputs), targets)
        loss.backward()
        if self.max_gradient_norm is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.max_gradient_norm)
        self.optimizer.step()
        if self.schedule is not None:
            self.schedule.step()
        return loss.detach()


def train(
    device: str,
    training: Training,
    batches: Iterable[Batch],
    steps: int,
    evaluate: Callable[[], float],
    options: argparse.Namespace,
) -> Run:
    """Trains on `steps` batches of CPU tensors, with a progress bar, then evaluates.

    Unless `options.allow_fallback`, a step that needs the CPU fallback raises NotImplementedError.
    """
    if options.compile:
        # Not Module.compile(), which compiles no class of torch.nn.
        training = dataclasses.replace(training, model=cast("nn.Module", torch.compile(training.model)))
    losses: list[torch.Tensor] = []
    reset_fallbacks(device)
    start = time.perf_counter()
    with (
        contextlib.nullcontext() if options.allow_fallback else fallbacks_forbidden(device),
        tqdm(total=steps, desc=f"training on {device}", unit="step") as progress,
    ):
        for inputs, targets in batches:
            losses.append(training.step(inputs.to(device), targets.to(device)))
            progress.update()
            # Reading a loss waits for the device: once in a while is enough.
            if len(losses) % 20 == 0 or len(losses) == steps:
                progress.set_postfix(loss=f"{losses[-1].item():.4f}")
    return Run(
        device=device,
        seconds=time.perf_counter() - start,
        losses=[loss.item() for loss in losses],
        score=evaluate(),
        fallbacks=fallbacks(device),
    )


# The CPU fallback of the device ---------------------------------------------------------------------------------------


def reset_fallbacks(device: str) -> None:
    if device != "cpu":
        import torch_mtia

        torch_mtia.fallback.reset()


def fallbacks(device: str) -> dict[str, int]:
    if device == "cpu":
        return {}
    import torch_mtia

    return torch_mtia.fallback.stats()


def fallbacks_forbidden(device: str) -> contextlib.AbstractContextManager[None]:
    if device == "cpu":
        return contextlib.nullcontext()
    import torch_mtia

    return torch_mtia.fallback.forbid()


# Reporting ------------------------------------------------------------------------------------------------------------


def describe(run: Run, score: Score) -> str:
    lines = [
        f"{run.device}: {score.name} {score.show(run.score)}, loss {run.losses[0]:.4f} -> {run.losses[-1]:.4f}, "
        f"{len(run.losses)} steps in {run.seconds:.1f} s"
    ]
    if run.fallbacks:
        width = max(map(len, run.fallbacks))
        lines += ["operators that ran in the CPU fallback:", f"  {'operator':<{width}}  {'calls':>7}"]
        lines += [f"  {operator:<{width}}  {calls:>7}" for operator, calls in run.fallbacks.items()]
    elif run.device != "cpu":
        lines.append("no operator ran in the CPU fallback")
    return "\n".join(lines)


def draw(runs: list[Run], score: Score, title: str, path: Path) -> None:
    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    for run, style in zip(runs, ("-", "--"), strict=False):
        axes.plot(run.losses, style, label=f"{run.device}: {score.name} {score.show(run.score)}", linewidth=1)
    axes.set(xlabel="step", ylabel="loss", yscale="log", title=title)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def agree(score: Score, one: Run, other: Run) -> bool:
    """Prints how far two runs are apart; True if the first losses and the scores are the same but for rounding."""
    pairs = list(zip(one.losses, other.losses, strict=True))[:COMPARED_LOSSES]
    loss_difference = max(abs(a - b) / abs(b) for a, b in pairs)
    print(
        f"first {len(pairs)} losses: largest relative difference {loss_difference:.1e} "
        f"(allowed: {MAX_RELATIVE_DIFFERENCE:.0e})\n"
        f"{score.name}: {one.device} {score.show(one.score)}, {other.device} {score.show(other.score)} "
        f"(allowed difference: {score.show(score.max_difference)})"
    )
    return loss_difference <= MAX_RELATIVE_DIFFERENCE and abs(one.score - other.score) <= score.max_difference


# The command line -----------------------------------------------------------------------------------------------------


def at_least_one(text: str) -> int:
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def parser(description: str | None, output: Path) -> argparse.ArgumentParser:
    """The options of every demo. `output` is where the loss curve goes by default."""
    options = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument(
        "--device",
        default=device_type(),
        help="mtia, cpu, or a name for mtia, as in docs/privateuse1.md (default: %(default)s)",
    )
    options.add_argument("--compare", action="store_true", help="train on the CPU too and compare the runs")
    options.add_argument("--allow-fallback", action="store_true", help="let training steps use the CPU fallback")
    options.add_argument("--compile", action="store_true", help="compile the network with torch.compile")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--output", type=Path, default=output, help="the loss curve, a picture (default: %(default)s)")
    options.add_argument("--losses", type=Path, metavar="FILE.json", help="write all figures of the runs")
    return options


def give_name(name: str) -> None:
    from torch_mtia import privateuse1

    try:
        privateuse1.enable(name)
    except (ValueError, RuntimeError) as error:
        sys.exit(f"error: --device {name}: {error}")


def main(options: argparse.Namespace, title: str, score: Score, train_on: Callable[[str], Run]) -> int:
    """Trains on the chosen devices, reports, and compares if asked to. Returns the exit status."""
    devices = (options.device, "cpu") if options.compare else (options.device,)
    if options.device not in (device_type(), "cpu"):
        give_name(options.device)
    if options.device != "cpu" and not torch.get_device_module(options.device).is_available():
        sys.exit(f"error: the device {options.device} is not available; `python -m torch_mtia` tells why.")
    runs = []
    for device in devices:
        try:
            runs.append(train_on(device))
        except NotImplementedError as error:
            sys.exit(f"error: {error}\nA training step must not use the CPU fallback; --allow-fallback lets it.")
        print(describe(runs[-1], score))
    draw(runs, score, title, options.output)
    print(f"loss curve: {options.output}")
    if options.losses is not None:
        options.losses.write_text(json.dumps([dataclasses.asdict(run) for run in runs], indent=1) + "\n")
    return 0 if not options.compare or agree(score, *runs) else 1
