"""Sparse tensors: of coordinates, and compressed."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from torch_mtia.conformance.agreement import EXACT, assert_agrees, numbers, stored
from torch_mtia.conformance.database import CPU, assert_same

pytestmark = pytest.mark.filterwarnings("ignore")

Call = Callable[[torch.device], Any]

# Sparse: coordinates -------------------------------------------------------------------------------------------------


def coordinates(device: torch.device, **options: Any) -> torch.Tensor:
    """A matrix of 4 x 5 with six entries, two of them for the same place."""
    indices = torch.tensor([[0, 1, 1, 3, 3, 2], [4, 0, 0, 2, 1, 3]])
    return torch.sparse_coo_tensor(
        indices.to(device), numbers(6, device=device), (4, 5), check_invariants=True, **options
    )


def wide(device: torch.device) -> torch.Tensor:
    return numbers(5, 3, device=device, seed=1)


COO: dict[str, Call] = {
    "to dense": lambda d: coordinates(d).to_dense(),
    "coalesced": lambda d: [(x := coordinates(d).coalesce()).indices(), x.values(), x.is_coalesced()],
    "parts": lambda d: [(x := coordinates(d))._indices(), x._values(), x._nnz(), x.is_coalesced()],
    "of a dense one": lambda d: [(x := F.relu(numbers(4, 5, device=d)).to_sparse()).indices(), x.values()],
    "hybrid": lambda d: numbers(4, 3, 2, device=d).to_sparse(2).to_dense(),
    "sum": lambda d: coordinates(d).sum(),
    "sum of a dimension": lambda d: torch.sparse.sum(coordinates(d), 0).to_dense(),
    "added": lambda d: (coordinates(d) + coordinates(d)).to_dense(),
    "added to a dense one": lambda d: numbers(4, 5, device=d) + coordinates(d),
    "subtracted": lambda d: (coordinates(d) - 2 * coordinates(d)).to_dense(),
    "multiplied": lambda d: (coordinates(d) * coordinates(d)).to_dense(),
    "multiplied by a number": lambda d: (coordinates(d) * 3 / 2).to_dense(),
    "negated": lambda d: (-coordinates(d)).to_dense(),
    "product": lambda d: torch.sparse.mm(coordinates(d), wide(d)),
    "product by operator": lambda d: coordinates(d) @ wide(d),
    "product with a vector": lambda d: coordinates(d).coalesce().mv(wide(d)[:, 0]),
    "product of sparse ones": lambda d: torch.sparse.mm(coordinates(d), coordinates(d).t()).to_dense(),
    "addmm": lambda d: torch.sparse.addmm(numbers(4, 3, device=d), coordinates(d), wide(d), beta=0.5),
    "transposed": lambda d: coordinates(d).t().to_dense(),
    "softmax": lambda d: torch.sparse.softmax(coordinates(d), 1).to_dense(),
    "index_select": lambda d: coordinates(d).index_select(0, torch.tensor([3, 1], device=d)).to_dense(),
    "selected": lambda d: coordinates(d)[1].to_dense(),
    "narrowed": lambda d: torch.narrow_copy(coordinates(d), 1, 1, 3).to_dense(),
    "concatenated": lambda d: torch.cat([coordinates(d), coordinates(d)]).to_dense(),
    "stacked": lambda d: torch.stack([coordinates(d), coordinates(d)]).to_dense(),
    "mask": lambda d: numbers(4, 5, device=d).sparse_mask(coordinates(d).coalesce()).to_dense(),
    "unsqueezed": lambda d: coordinates(d).unsqueeze(0).to_dense(),
    "permuted": lambda d: coordinates(d).permute(1, 0).to_dense(),
    "of another dtype": lambda d: coordinates(d).double().to_dense(),
    "complex": lambda d: (coordinates(d) * (1 + 2j)).to_dense(),
    "of none": lambda d: torch.zeros(3, 2, layout=torch.sparse_coo, device=d).to_dense(),
    "zeroed": lambda d: coordinates(d).zero_().to_dense(),
    "function that keeps zeros": lambda d: coordinates(d).coalesce().sin().to_dense(),
    "power": lambda d: coordinates(d).coalesce().pow(2).to_dense(),
    "norm": lambda d: coordinates(d).coalesce().norm(),
    "cloned": lambda d: coordinates(d).clone().to_dense(),
    "zeros like it": lambda d: torch.zeros_like(coordinates(d)).to_dense(),
    "resized": lambda d: coordinates(d).sparse_resize_((6, 7), 2, 0).to_dense(),
    "hspmm": lambda d: torch.hspmm(coordinates(d), wide(d)).to_dense(),
    "smm": lambda d: torch.smm(coordinates(d), wide(d)).to_dense(),
    "batches": lambda d: torch.bmm(torch.stack([coordinates(d)] * 2), numbers(2, 5, 3, device=d)),
    "times a dense one": lambda d: (coordinates(d).coalesce() * numbers(4, 5, device=d)).to_dense(),
    "logarithm of softmax": lambda d: torch.sparse.log_softmax(coordinates(d), 1).to_dense(),
    "copied in place": lambda d: torch.zeros_like(coordinates(d)).copy_(coordinates(d)).to_dense(),
    "stored": lambda d: stored(coordinates(d)).to_dense(),
    "copied by Python": lambda d: copy.deepcopy(coordinates(d)).to_dense(),
    "steps of SparseAdam": lambda d: _sparse_adam(d),
    "accumulated gradient": lambda d: _embedding_gradient(d),
    "gradient of a product": lambda d: _gradient_of_product(d),
}


def _sparse_adam(device: torch.device) -> torch.Tensor:
    weight = numbers(6, 3, device=device).requires_grad_()
    optimizer = torch.optim.SparseAdam([weight], lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        F.embedding(torch.tensor([1, 4, 1], device=device), weight, sparse=True).square().sum().backward()
        optimizer.step()
    return weight.detach()


def _embedding_gradient(device: torch.device) -> Any:
    weight = numbers(6, 3, device=device).requires_grad_()
    F.embedding(torch.tensor([1, 4, 1], device=device), weight, sparse=True).square().sum().backward()
    assert weight.grad is not None
    assert weight.grad.is_sparse
    return weight.grad.to_dense()


def _gradient_of_product(device: torch.device) -> Any:
    sparse, dense = coordinates(device).requires_grad_(), wide(device).requires_grad_()
    torch.sparse.mm(sparse, dense).square().sum().backward()
    assert sparse.grad is not None
    return sparse.grad.to_dense(), dense.grad


@pytest.mark.parametrize("name", COO)
def test_coo(device: torch.device, name: str) -> None:
    assert_agrees(COO[name], device)


def test_coo_there_and_back(device: torch.device) -> None:
    there = coordinates(CPU).to(device)
    assert there.device == there._indices().device == there._values().device == device
    assert there.layout == torch.sparse_coo
    assert_same(there.cpu().to_dense(), coordinates(CPU).to_dense(), CPU, EXACT)
    assert f"device='{device}'" in repr(there) or device == CPU


def test_coo_out_of_bounds_is_refused(device: torch.device) -> None:
    with pytest.raises(RuntimeError, match="inconsistent with"):
        torch.sparse_coo_tensor(
            torch.tensor([[0, 9]], device=device), torch.ones(2, device=device), (3,), check_invariants=True
        )


# Sparse: compressed --------------------------------------------------------------------------------------------------

LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "csr": lambda x: x.to_sparse_csr(),
    "csc": lambda x: x.to_sparse_csc(),
    "bsr": lambda x: x.to_sparse_bsr((2, 2)),
    "bsc": lambda x: x.to_sparse_bsc((2, 2)),
}

COMPRESSED: dict[str, Callable[[torch.Tensor], Any]] = {
    "to_dense": lambda x: x.to_dense(),
    "values": lambda x: x.values(),
    "there": lambda x: x.cpu().to_dense(),
    "times a number": lambda x: (x * 2).to_dense(),
    "product": lambda x: x @ numbers(6, 3, device=x.device),
    "transposed": lambda x: x.transpose(0, 1).to_dense(),
    "cloned": lambda x: x.clone().to_dense(),
    "of another dtype": lambda x: x.to(torch.float64).to_dense(),
}


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        pytest.param(name, layout, id=f"{name}/{layout}")
        for name in COMPRESSED
        for layout in LAYOUTS
        if (name, layout) != ("product", "bsc")  # which the CPU has not
    ],
)
def test_compressed(device: torch.device, name: str, layout: str) -> None:
    assert_agrees(lambda d: COMPRESSED[name](LAYOUTS[layout](F.relu(numbers(4, 6, device=d)))), device)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_compressed_from_the_cpu(device: torch.device, layout: str) -> None:
    here = LAYOUTS[layout](numbers(4, 6))
    assert_same(here.to(device).to_dense(), here.to_dense(), device, EXACT)
