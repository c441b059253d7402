"""torch.use_deterministic_algorithms: every run gives the same bits, or says that it would not."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch.nn import functional as F

from torch_mtia.conformance.agreement import network, numbers
from torch_mtia.conformance.database import CPU

pytestmark = pytest.mark.filterwarnings("ignore")

Tensor = torch.Tensor
Function = Callable[[Tensor], Tensor]


@pytest.fixture
def _deterministic() -> Iterator[None]:
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(before)


def places(device: torch.device, count: int = 4000) -> Tensor:
    return torch.randint(0, 7, (count,), generator=torch.Generator().manual_seed(1)).to(device)


def gradient_for(function: Function, x: Tensor) -> Tensor:
    x = x.requires_grad_()
    return torch.autograd.grad(function(x).square().sum(), x)[0]


def many(device: torch.device, *shape: int) -> Tensor:
    return numbers(*(shape or (4000,)), device=device)


# What CUDA does in another order each time, unless told not to.
UNORDERED: dict[str, Callable[[torch.device], Tensor]] = {
    "index_add": lambda d: torch.zeros(7, device=d).index_add_(0, places(d), many(d)),
    "scatter_add": lambda d: torch.zeros(7, device=d).scatter_add_(0, places(d), many(d)),
    "scatter_reduce": lambda d: torch.zeros(7, device=d).scatter_reduce_(0, places(d), many(d), "mean"),
    "index_put": lambda d: torch.zeros(7, device=d).index_put_((places(d),), many(d), accumulate=True),
    "index_copy": lambda d: torch.zeros(7, device=d).index_copy_(0, places(d), many(d)),
    "put": lambda d: torch.zeros(7, device=d).put_(places(d), many(d), accumulate=True),
    "bincount": lambda d: torch.bincount(places(d), many(d)),
    "histc": lambda d: torch.histc(many(d), 10),
    "cumsum": lambda d: many(d).cumsum(0),
    "sum": lambda d: many(d, 300, 300).sum(),
    "median": lambda d: torch.cat([*many(d).median(0, keepdim=True)]),
    "kthvalue": lambda d: torch.cat([*many(d).kthvalue(9, keepdim=True)]),
    "gather backward": lambda d: gradient_for(lambda x: x.gather(0, places(d)), many(d, 7)),
    "index_select backward": lambda d: gradient_for(lambda x: x.index_select(0, places(d)), many(d, 7)),
    "embedding backward": lambda d: gradient_for(lambda x: F.embedding(places(d), x), many(d, 7, 3)),
    "embedding_bag backward": lambda d: gradient_for(
        lambda x: F.embedding_bag(places(d).view(100, 40), x, mode="sum"), many(d, 7, 3)
    ),
    "conv2d backward": lambda d: gradient_for(lambda w: F.conv2d(many(d, 4, 3, 20, 20), w), many(d, 5, 3, 3, 3)),
    "max_pool2d backward": lambda d: gradient_for(lambda x: F.max_pool2d(x, 3, 1), many(d, 1, 2, 20, 20)),
    "avg_pool3d backward": lambda d: gradient_for(lambda x: F.avg_pool3d(x, 3, 1), many(d, 1, 2, 8, 8, 8)),
    "adaptive_avg_pool2d backward": lambda d: gradient_for(
        lambda x: F.adaptive_avg_pool2d(x, 3), many(d, 1, 2, 20, 20)
    ),
    "interpolate backward": lambda d: gradient_for(
        lambda x: F.interpolate(x, scale_factor=3.3, mode="bilinear"), many(d, 1, 2, 9, 9)
    ),
    "reflection_pad backward": lambda d: gradient_for(lambda x: F.pad(x, (3, 3), "reflect"), many(d, 2, 9)),
    "replication_pad backward": lambda d: gradient_for(lambda x: F.pad(x, (9, 9), "replicate"), many(d, 2, 9)),
    "grid_sample backward": lambda d: gradient_for(
        lambda x: F.grid_sample(x, many(d, 1, 20, 20, 2).tanh(), align_corners=False), many(d, 1, 2, 9, 9)
    ),
    "nll_loss2d": lambda d: F.nll_loss(many(d, 2, 7, 10, 10), places(d, 200).view(2, 10, 10)),
    "ctc_loss backward": lambda d: gradient_for(
        lambda x: F.ctc_loss(
            x.log_softmax(2), 1 + places(CPU, 8).view(2, 4).to(d) % 6, torch.tensor([12, 12]), torch.tensor([4, 4])
        ),
        many(d, 12, 2, 7),
    ),
    "cdist backward": lambda d: gradient_for(lambda x: torch.cdist(x, x + 1), many(d, 50, 4)),
}


@pytest.mark.usefixtures("_deterministic")
@pytest.mark.parametrize("name", UNORDERED)
def test_deterministic(device: torch.device, name: str) -> None:
    """Each run gives the same bits, or says that it would not."""
    try:
        first = UNORDERED[name](device)
    except RuntimeError as error:
        if "determinis" not in str(error):
            raise
        return
    for _ in range(4):
        assert torch.equal(UNORDERED[name](device), first)


@pytest.mark.usefixtures("_deterministic")
def test_empty_memory_is_filled(device: torch.device) -> None:
    assert torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    makers: list[Callable[[], Tensor]] = [
        lambda: torch.empty(100, device=device),
        lambda: torch.empty_like(torch.ones(100, device=device)),
        lambda: torch.ones(1, device=device).new_empty(100),
        lambda: torch.empty_strided((10, 10), (1, 10), device=device),
        lambda: torch.ones(0, device=device).resize_(100),
    ]
    for make in makers:
        assert make().isnan().all()
    assert torch.empty(5, dtype=torch.int32, device=device).unique().tolist() == [2**31 - 1]


def test_two_trainings_are_equal(device: torch.device) -> None:
    def train() -> list[Tensor]:
        net = network(device)
        optimizer = torch.optim.Adam(net.parameters())
        for step in range(5):
            optimizer.zero_grad()
            F.dropout(net(numbers(16, 4, device=device, seed=step)), 0.1).square().sum().backward()
            optimizer.step()
        return [parameter.detach() for parameter in net.parameters()]

    assert all(map(torch.equal, train(), train()))
