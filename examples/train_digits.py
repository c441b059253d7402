"""Trains a small convolutional network on scikit-learn's handwritten digits, on the device `mtia` or on the CPU.

Parameters and the order of the data are drawn on the CPU, so both devices see the same numbers:

    python examples/train_digits.py --device mtia
    python examples/train_digits.py --compare      # both, and fails if they differ
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from pathlib import Path

import matplotlib as mpl
import torch
from sklearn.datasets import load_digits
from torch import nn
from tqdm import tqdm

mpl.use("Agg")
from matplotlib import pyplot as plt

BATCH_SIZE = 64
TEST_SAMPLES = 360
SPLIT_SEED = 0  # the test pictures are the same for every --seed
COMPARED_LOSSES = 20
MAX_RELATIVE_DIFFERENCE = 1e-4
MAX_ACCURACY_DIFFERENCE = 0.01


@dataclasses.dataclass(frozen=True)
class Digits:
    """8x8 grey pictures in [0, 1], shape (n, 1, 8, 8), and the digits they show."""

    train_images: torch.Tensor
    train_labels: torch.Tensor
    test_images: torch.Tensor
    test_labels: torch.Tensor


@dataclasses.dataclass(frozen=True)
class Run:
    device: str
    losses: list[float]  # one for each step
    accuracy: float  # on the test pictures
    seconds: float
    fallbacks: dict[str, int]


def digits() -> Digits:
    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(data.target)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(SPLIT_SEED))
    train, test = order[TEST_SAMPLES:], order[:TEST_SAMPLES]
    return Digits(images[train], labels[train], images[test], labels[test])


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 10),
    )


def train(device: str, epochs: int, seed: int) -> Run:
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    data = digits()
    model = network().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loss_function = nn.CrossEntropyLoss()
    reset_fallbacks(device)

    losses: list[torch.Tensor] = []
    start = time.perf_counter()
    steps_per_epoch = -(-len(data.train_images) // BATCH_SIZE)
    with tqdm(total=epochs * steps_per_epoch, desc=f"training on {device}", unit="step") as progress:
        for epoch in range(epochs):
            order = torch.randperm(len(data.train_images), generator=generator)
            for batch in order.split(BATCH_SIZE):
                images = data.train_images[batch].to(device)
                labels = data.train_labels[batch].to(device)
                optimizer.zero_grad()
                loss = loss_function(model(images), labels)
                loss.backward()
                optimizer.step()
                losses.append(loss.detach())
                progress.update()
            # Reading a loss waits for the device: once an epoch is often enough.
            progress.set_postfix(epoch=epoch + 1, loss=f"{losses[-1].item():.4f}")
    accuracy = evaluate(model, data, device)
    return Run(
        device=device,
        losses=torch.stack(losses).tolist(),
        accuracy=accuracy,
        seconds=time.perf_counter() - start,
        fallbacks=fallbacks(device),
    )


def evaluate(model: nn.Module, data: Digits, device: str) -> float:
    with torch.no_grad():
        predictions = model(data.test_images.to(device)).argmax(dim=1)
        right = predictions == data.test_labels.to(device)
        return float(right.float().mean())


def reset_fallbacks(device: str) -> None:
    if device == "mtia":
        import torch_mtia

        torch_mtia.fallback.reset()


def fallbacks(device: str) -> dict[str, int]:
    """How often each operator ran in the CPU fallback."""
    if device != "mtia":
        return {}
    import torch_mtia

    return torch_mtia.fallback.stats()


def draw(runs: list[Run], path: Path) -> None:
    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    for run, style in zip(runs, ("-", "--"), strict=False):
        axes.plot(run.losses, style, label=f"{run.device}: {run.accuracy:.1%} of the test digits right", linewidth=1)
    axes.set(xlabel="step", ylabel="loss", yscale="log", title="Training on handwritten digits")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def describe(run: Run) -> str:
    lines = [
        f"{run.device}: test accuracy {run.accuracy:.2%}, loss {run.losses[0]:.4f} -> {run.losses[-1]:.4f}, "
        f"{len(run.losses)} steps in {run.seconds:.1f} s"
    ]
    if run.fallbacks:
        width = max(map(len, run.fallbacks))
        lines += ["operators that ran in the CPU fallback:", f"  {'operator':<{width}}  {'calls':>7}"]
        lines += [f"  {operator:<{width}}  {calls:>7}" for operator, calls in run.fallbacks.items()]
    elif run.device == "mtia":
        lines.append("no operator ran in the CPU fallback")
    return "\n".join(lines)


def agree(one: Run, other: Run) -> bool:
    """Prints how far two runs are apart; True if the first losses and the accuracies are the same but for rounding."""
    pairs = list(zip(one.losses, other.losses, strict=True))[:COMPARED_LOSSES]
    loss_difference = max(abs(a - b) / abs(b) for a, b in pairs)
    accuracy_difference = abs(one.accuracy - other.accuracy)
    print(
        f"first {len(pairs)} losses: largest relative difference {loss_difference:.1e} "
        f"(allowed: {MAX_RELATIVE_DIFFERENCE:.0e})\n"
        f"test accuracy: {one.device} {one.accuracy:.2%}, {other.device} {other.accuracy:.2%} "
        f"(allowed difference: {MAX_ACCURACY_DIFFERENCE:.0%})"
    )
    return loss_difference <= MAX_RELATIVE_DIFFERENCE and accuracy_difference <= MAX_ACCURACY_DIFFERENCE


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("mtia", "cpu"), default="mtia")
    parser.add_argument("--compare", action="store_true", help="train on both devices and compare the runs")
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path("digits_loss.png"), help="the loss curve, a picture")
    parser.add_argument("--losses", type=Path, metavar="FILE.json", help="write all figures of the runs")
    options = parser.parse_args()
    if options.epochs < 1:
        parser.error("--epochs must be at least 1")
    return options


def main() -> int:
    options = arguments()
    devices = ("mtia", "cpu") if options.compare else (options.device,)
    if "mtia" in devices and not torch.mtia.is_available():
        sys.exit("error: the device mtia is not available; `python -m torch_mtia` tells why.")
    runs = []
    for device in devices:
        runs.append(train(device, options.epochs, options.seed))
        print(describe(runs[-1]))
    draw(runs, options.output)
    print(f"loss curve: {options.output}")
    if options.losses is not None:
        options.losses.write_text(json.dumps([dataclasses.asdict(run) for run in runs], indent=1) + "\n")
    return 0 if not options.compare or agree(*runs) else 1


if __name__ == "__main__":
    sys.exit(main())
