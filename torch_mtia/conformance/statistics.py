"""Tests of samples of random numbers. A right generator exceeds the bounds with about one seed in 10,000."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

Distribution = Callable[[torch.Tensor], torch.Tensor]


def normal_cdf(x: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = torch.special.ndtr(x)
    return result


def distance(sample: torch.Tensor, cdf: Distribution) -> float:
    """Kolmogorov's and Smirnov's: between the distribution of the sample and the one that it should have."""
    values = cdf(sample.cpu().double().sort().values)
    steps = torch.arange(len(values) + 1, dtype=torch.float64) / len(values)
    return max(float((steps[1:] - values).max()), float((values - steps[:-1]).max()))


def assert_counts(counts: torch.Tensor, probabilities: torch.Tensor) -> None:
    """Pearson's test: how often each value was drawn is what the probabilities say."""
    counts, expected = counts.cpu().double(), probabilities.double() * counts.sum().cpu()
    assert counts[expected == 0].sum() == 0, "draws what has no probability"
    possible = expected > 0
    statistic = float(((counts - expected)[possible] ** 2 / expected[possible]).sum())
    freedom = int(possible.sum()) - 1
    assert statistic < freedom + 4 * math.sqrt(2 * freedom) + 8, f"drawn {counts.tolist()}, not {expected.tolist()}"


def assert_independent(first: torch.Tensor, second: torch.Tensor) -> None:
    pair = torch.stack([first.detach().cpu().double(), second.detach().cpu().double()])
    assert abs(float(torch.corrcoef(pair)[0, 1])) < 4 / math.sqrt(pair.shape[1])
