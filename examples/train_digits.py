"""Trains a small convolutional network on scikit-learn's handwritten digits, on the device `mtia` or on the CPU.

Parameters and the order of the data are drawn on the CPU, so both devices see the same numbers:

    python examples/train_digits.py --device mtia --compile
    python examples/train_digits.py --compare      # both, and fails if they differ
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn
from training import Batch, Run, Score, Training, at_least_one, main, parser, train

BATCH_SIZE = 64
TEST_SAMPLES = 360
SPLIT_SEED = 0  # the test pictures are the same for every --seed
ACCURACY = Score("test accuracy", ".2%", max_difference=0.01)


@dataclasses.dataclass(frozen=True)
class Digits:
    """8x8 grey pictures in [0, 1], shape (n, 1, 8, 8), and the digits they show."""

    train_images: torch.Tensor
    train_labels: torch.Tensor
    test_images: torch.Tensor
    test_labels: torch.Tensor

    def batches(self, epochs: int, seed: int) -> Iterator[Batch]:
        generator = torch.Generator().manual_seed(seed)
        for _ in range(epochs):
            order = torch.randperm(len(self.train_images), generator=generator)
            for batch in order.split(BATCH_SIZE):
                yield self.train_images[batch], self.train_labels[batch]


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


def training(device: str, seed: int) -> Training:
    torch.manual_seed(seed)
    model = network().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    return Training(model, optimizer, nn.CrossEntropyLoss())


def accuracy(model: nn.Module, data: Digits, device: str) -> float:
    """The share of the test pictures whose digit the model names."""
    with torch.no_grad():
        predictions = model(data.test_images.to(device)).argmax(dim=1)
        right = predictions == data.test_labels.to(device)
        return float(right.float().mean())


def run(device: str, options: argparse.Namespace) -> Run:
    data = digits()
    network_in_training = training(device, options.seed)
    return train(
        device,
        network_in_training,
        data.batches(options.epochs, options.seed),
        steps=options.epochs * -(-len(data.train_images) // BATCH_SIZE),
        evaluate=lambda: accuracy(network_in_training.model, data, device),
        options=options,
    )


def arguments() -> argparse.Namespace:
    options = parser(__doc__, output=Path("digits_loss.png"))
    options.add_argument("--epochs", type=at_least_one, default=15)
    return options.parse_args()


if __name__ == "__main__":
    options = arguments()
    sys.exit(main(options, "Training on handwritten digits", ACCURACY, lambda device: run(device, options)))
