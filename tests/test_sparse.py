"""Sparse tensors of the layout torch.sparse_coo: made, converted, computed with, and as gradients of embeddings."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
import torch.nn.functional as F

if TYPE_CHECKING:
    from tests.conftest import RunScript

CPU = torch.device("cpu")

OPERATORS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "to_dense": lambda s: s.to_dense(),
    "indices": lambda s: s.indices(),
    "values": lambda s: s.values(),
    "a matrix product": lambda s: torch.sparse.mm(s, torch.ones(4, 3, device=s.device)),
    "a product with a dense one": lambda s: torch.mm(s, torch.ones(4, 2, device=s.device)),
    "a sum": lambda s: (s + s).to_dense(),
    "a sum with a dense one": lambda s: torch.ones(4, 4, device=s.device) + s,
    "a multiple": lambda s: (s * 3).to_dense(),
    "a sum of all": lambda s: torch.sparse.sum(s),
    "a softmax": lambda s: torch.sparse.softmax(s, 1).to_dense(),
    "a transpose": lambda s: s.t().to_dense(),
    "a clone": lambda s: s.clone().to_dense(),
    "a selection": lambda s: s.index_select(0, torch.tensor([1, 0], device=s.device)).to_dense(),
    "another dtype": lambda s: s.to(torch.float64).to_dense(),
    "a function": lambda s: torch.sin(s).to_dense(),
    "in place": lambda s: s.mul_(2).to_dense(),
    "zeroed": lambda s: s.clone().zero_().to_dense(),
    "a sum of all elements": lambda s: s.sum(),
    "a product with a vector": lambda s: s.mv(torch.arange(4.0, device=s.device)),
    "permuted": lambda s: s.permute(1, 0).to_dense(),
    "moved": lambda s: s.movedim(0, 1).to_dense(),
    "where it is infinite": lambda s: (s / 0).isinf().to_dense(),
    "a mask": lambda s: torch.arange(16.0, device=s.device).view(4, 4).sparse_mask(s).to_dense(),
}


def matrix(device: torch.device) -> torch.Tensor:
    indices = torch.tensor([[0, 1, 1, 3], [2, 0, 3, 1]], device=device)
    return torch.sparse_coo_tensor(indices, torch.tensor([1.0, 2.0, 3.0, 4.0], device=device), (4, 4)).coalesce()


@pytest.mark.parametrize("name", OPERATORS)
def test_operators(device: torch.device, name: str) -> None:
    actual, expected = (OPERATORS[name](matrix(where)) for where in (device, CPU))
    assert actual.device == device
    torch.testing.assert_close(actual.cpu(), expected)


def test_a_device_that_is_not_current(run_script: RunScript) -> None:
    run_script(
        """
        import torch
        from tests.test_sparse import CPU, OPERATORS, matrix

        first, second = torch.device("mtia:0"), torch.device("mtia:1")
        for name, operator in OPERATORS.items():
            actual = operator(matrix(second))
            assert actual.device == second, name
            torch.testing.assert_close(actual.cpu(), operator(matrix(CPU)))
        made = [
            matrix(CPU).to(second),
            matrix(first).to(second),
            matrix(second).double(),
            torch.empty_like(matrix(second)).copy_(matrix(second)),
            torch.zeros_like(matrix(second)),
            torch.sparse_coo_tensor((3, 3), device=second),
        ]
        for each in made:
            assert each.device == each._values().device == each._indices().device == second
        back = matrix(second).to(first)
        assert back.device == back._values().device == first
        torch.testing.assert_close(made[0].to_dense().cpu(), matrix(CPU).to_dense())
        """,
        TORCH_MTIA_DEVICES="2",
        PYTHONPATH=str(Path(__file__).parent.parent),
    ).output()


def test_every_operator_with_a_sparse_cpu_kernel_has_one(device: torch.device) -> None:
    """Where it has none, the composite kernel for dense tensors would run. They come with the first sparse tensor."""
    matrix(device)
    is_renamed = device.type == torch._C._get_privateuse1_backend_name()
    key = "SparsePrivateUse1" if is_renamed else "SparseMTIA"
    names = [name for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::")]
    on_cpu = [name for name in names if torch._C._dispatch_has_kernel_for_dispatch_key(name, "SparseCPU")]
    assert "aten::sum" in on_cpu
    assert [name for name in on_cpu if f"\n{key}: registered" not in torch._C._dispatch_dump(name)] == []


@pytest.mark.parametrize("in_place", [False, True])
def test_what_needs_coalesced_tensors_treats_them_as_the_cpu_does(device: torch.device, in_place: bool) -> None:
    def degrees(where: torch.device) -> torch.Tensor:
        sparse = matrix(where) if in_place else matrix(where) + matrix(where)
        return sparse.rad2deg_() if in_place else sparse.rad2deg()

    actual, expected = degrees(device).cpu(), degrees(CPU)
    assert actual.is_coalesced() == expected.is_coalesced()
    torch.testing.assert_close(actual.to_dense(), expected.to_dense())


def test_repeated_indices_are_added(device: torch.device) -> None:
    sparse = torch.sparse_coo_tensor(torch.tensor([[1, 1, 0]]), torch.tensor([1.0, 2.0, 3.0]), (3,), device=device)
    assert not sparse.is_coalesced()
    together = sparse.coalesce()
    assert (together.indices().tolist(), together.values().tolist()) == ([[0, 1]], [3.0, 3.0])


def test_there_and_back(device: torch.device) -> None:
    sparse = matrix(CPU).to(device)
    assert (sparse.device, sparse.layout, sparse.is_coalesced()) == (device, torch.sparse_coo, True)
    assert torch.equal(sparse.cpu().to_dense(), matrix(CPU).to_dense())
    file = io.BytesIO()
    torch.save(sparse, file)
    file.seek(0)
    loaded = torch.load(file)
    assert loaded.device == device
    assert torch.equal(loaded.to_dense().cpu(), matrix(CPU).to_dense())
    assert "nnz=4" in repr(sparse)


def test_dense_to_sparse_and_its_gradient(device: torch.device) -> None:
    x = torch.tensor([[0.0, 2.0], [3.0, 0.0]], device=device, requires_grad=True)
    sparse = x.to_sparse()
    assert sparse._nnz() == 2
    torch.sparse.sum(sparse * 3).backward()
    assert x.grad is not None
    assert x.grad.to_dense().tolist() == [[0.0, 3.0], [3.0, 0.0]]


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adagrad])
def test_embeddings_with_sparse_gradients(device: torch.device, optimizer: type[torch.optim.Optimizer]) -> None:
    def trained(where: torch.device) -> torch.Tensor:
        weight = torch.arange(20.0).view(5, 4).to(where).requires_grad_()
        steps = optimizer([weight], lr=0.1)  # type: ignore[call-arg]
        for tokens in ([1, 3, 1], [0, 3, 3]):
            steps.zero_grad()
            F.embedding(torch.tensor(tokens, device=where), weight, sparse=True).square().sum().backward()
            assert weight.grad is not None
            assert weight.grad.is_sparse
            steps.step()
        return weight.detach().cpu()

    torch.testing.assert_close(trained(device), trained(CPU))


@pytest.mark.parametrize("options", [{}, {"padding_idx": 1}, {"include_last_offset": True}], ids=str)
@pytest.mark.parametrize("mode", ["sum", "mean"])
@pytest.mark.parametrize("offsets", [(0, 2, 5), (0, 0, 2, 5), (0, 5, 5)])
def test_bags_of_embeddings_with_sparse_gradients(
    device: torch.device, mode: str, options: dict[str, int], offsets: tuple[int, ...]
) -> None:
    def gradient(where: torch.device) -> torch.Tensor:
        weight = torch.arange(18.0).view(6, 3).to(where).requires_grad_()
        tokens, starts = torch.tensor([1, 3, 1, 5, 0], device=where), torch.tensor(offsets, device=where)
        bags = F.embedding_bag(tokens, weight, starts, mode=mode, sparse=True, **options)  # type: ignore[arg-type]
        (bags * torch.arange(1.0, 1 + bags.numel()).view(bags.shape).to(where)).sum().backward()
        assert weight.grad is not None
        assert weight.grad.is_sparse
        return weight.grad.cpu()

    actual, expected = gradient(device), gradient(CPU)
    assert torch.equal(actual._indices(), expected._indices())
    assert torch.equal(actual._values(), expected._values())


def test_weighted_bags_have_sparse_gradients(device: torch.device) -> None:
    def gradients(where: torch.device) -> list[torch.Tensor]:
        weight = torch.arange(18.0).view(6, 3).to(where).requires_grad_()
        factors = torch.arange(1.0, 6.0).to(where).requires_grad_()
        tokens, starts = torch.tensor([1, 3, 1, 5, 0], device=where), torch.tensor([0, 2], device=where)
        F.embedding_bag(
            tokens, weight, starts, mode="sum", sparse=True, per_sample_weights=factors
        ).square().sum().backward()
        assert weight.grad is not None
        assert factors.grad is not None
        return [weight.grad.to_dense().cpu(), factors.grad.cpu()]

    torch.testing.assert_close(gradients(device), gradients(CPU))
