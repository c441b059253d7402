"""Tensors: creation, copies, views, indexing, serialisation, printing."""

from __future__ import annotations

import copy
import io
import itertools
import pickle
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch

from torch_mtia.conformance.database import CPU, assert_same, dtype_name

pytestmark = pytest.mark.filterwarnings("ignore")

Make = Callable[[torch.device], torch.Tensor]
EXACT = {"rtol": 0.0, "atol": 0.0}

DTYPES = (
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.complex128),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
    *(torch.uint16, torch.uint32, torch.uint64, torch.float8_e4m3fn, torch.float8_e5m2, torch.complex32),
)
by_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=dtype_name)

CREATION: dict[str, Make] = {
    "zeros": lambda d: torch.zeros(2, 3, device=d),
    "ones": lambda d: torch.ones(2, 3, dtype=torch.int32, device=d),
    "full": lambda d: torch.full((3,), 2.5, device=d),
    "arange": lambda d: torch.arange(3, 20, 4, device=d),
    "linspace": lambda d: torch.linspace(0, 1, 7, device=d),
    "logspace": lambda d: torch.logspace(0, 2, 5, dtype=torch.float64, device=d),
    "eye": lambda d: torch.eye(3, 4, device=d),
    "tensor": lambda d: torch.tensor([[1, 2], [3, 4]], device=d),
    "tensor of none": lambda d: torch.tensor([], device=d),
    "as_tensor of numpy": lambda d: torch.as_tensor(numpy.arange(5.0), device=d),
    "new_tensor": lambda d: torch.zeros(1, device=d).new_tensor([1.0, 2.0]),
    "zeros_like": lambda d: torch.zeros_like(torch.ones(2, 3, device=d).t()),
    "full_like": lambda d: torch.full_like(torch.ones(2, device=d), 7, dtype=torch.int64),
    "tril_indices": lambda d: torch.tril_indices(3, 4, device=d),
    "complex": lambda d: torch.complex(torch.ones(2, device=d), torch.zeros(2, device=d)),
    "channels last": lambda d: torch.ones(1, 2, 3, 4, device=d).contiguous(memory_format=torch.channels_last),
    "hann_window": lambda d: torch.hann_window(9, device=d),
    "no elements": lambda d: torch.zeros(0, 3, device=d),
    "default device": lambda d: _with_default(d),
}


def _with_default(device: torch.device) -> torch.Tensor:
    with device:
        return torch.arange(4.0)


def matrix(device: torch.device) -> torch.Tensor:
    return torch.arange(24.0).to(device).view(4, 6)


VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "transpose": lambda x: x.t(),
    "slice": lambda x: x[1:3, ::2],
    "select": lambda x: x[2],
    "expand": lambda x: x[:, :1].expand(4, 5),
    "diagonal": lambda x: x.diagonal(),
    "unfold": lambda x: x.unfold(1, 3, 2),
    "as_strided": lambda x: x.as_strided((3, 3), (6, 2), 1),
    "view as another dtype": lambda x: x.view(torch.int32),
    "unbind": lambda x: x.unbind(1)[3],
    "split": lambda x: x.split([1, 3])[1],
    "squeeze": lambda x: x[:, None].squeeze(1),
    "movedim": lambda x: x.view(2, 2, 6).movedim(0, 2),
    "real part": lambda x: torch.view_as_complex(x.view(4, 3, 2)).real,
    "conjugate": lambda x: torch.view_as_complex(x.view(4, 3, 2)).conj(),
    "flip": lambda x: x.flip(0),
    "narrow": lambda x: x.narrow(1, 2, 3),
}

INDEXING: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "integer tensor": lambda x: x[torch.tensor([3, 0, 0], device=x.device)],
    "integer tensor of the CPU": lambda x: x[torch.tensor([3, 0])],
    "list": lambda x: x[[1, 2], [0, 5]],
    "mask": lambda x: x[x > 7],
    "mask of none": lambda x: x[x > 100],
    "negative": lambda x: x[-1, -2],
    "ellipsis": lambda x: x[..., 1],
    "new axis": lambda x: x[:, None, 2],
    "mixed": lambda x: x[torch.tensor([0, 2], device=x.device), 1:4],
    "nonzero": lambda x: (x % 5 == 0).nonzero(),
    "where": lambda x: torch.where(x > 3, x, -x),
    "gather": lambda x: x.gather(1, (x.long() % 6)),
    "take": lambda x: x.take(torch.tensor([0, 23], device=x.device)),
    "masked_select": lambda x: x.masked_select(x < 4),
}

ASSIGNMENTS: dict[str, Callable[[torch.Tensor], Any]] = {
    "element": lambda x: x.__setitem__((1, 2), 9),
    "slice": lambda x: x.__setitem__(slice(1, 3), -1),
    "mask": lambda x: x.__setitem__(x > 7, 0),
    "tensor": lambda x: x.__setitem__(torch.tensor([0, 3], device=x.device), torch.ones(2, 6, device=x.device)),
    "number of the CPU": lambda x: x.__setitem__((slice(None), 0), torch.tensor(5.0)),
    "rows of the CPU": lambda x: x[0].copy_(torch.arange(6.0)),
    "accumulated": lambda x: x.index_put_(
        (torch.zeros(3, dtype=torch.long, device=x.device),), x[1].clone(), accumulate=True
    ),
    "scattered": lambda x: x.scatter_(1, torch.zeros(4, 2, dtype=torch.long, device=x.device), 3.0),
    "index_add": lambda x: x.index_add_(0, torch.tensor([1, 1], device=x.device), torch.ones(2, 6, device=x.device)),
    "filled diagonal": lambda x: x.fill_diagonal_(1),
    "through a view": lambda x: x.t()[2].mul_(3),
    "resized": lambda x: x.resize_(2, 3),
    "overlapping rows": lambda x: x[1:].copy_(x[:-1].clone()),
}


@pytest.mark.parametrize("name", CREATION)
def test_creation(device: torch.device, name: str) -> None:
    tensor = CREATION[name](device)
    assert tensor.device == device
    assert_same(tensor, CREATION[name](CPU), device, {})


@by_dtype
def test_there_and_back(device: torch.device, dtype: torch.dtype) -> None:
    here = torch.arange(60).view(3, 4, 5).to(dtype)
    for tensor in (here, here.transpose(0, 2), here[:, ::2], here[..., 1:3]):
        there = tensor.to(device)
        assert there.dtype == dtype
        assert_same(there.cpu(), tensor, CPU, EXACT)


@by_dtype
def test_conversions(device: torch.device, dtype: torch.dtype) -> None:
    here = torch.tensor([0.0, 1.0, 2.75, 100.0])
    assert_same(here.to(device).to(dtype), here.to(dtype), device, EXACT)
    assert_same(here.to(device, dtype), here.to(dtype), device, EXACT)
    assert_same(here.to(dtype).to(device).float(), here.to(dtype).float(), device, EXACT)


@by_dtype
def test_clones_and_fills(device: torch.device, dtype: torch.dtype) -> None:
    there = torch.zeros(5, dtype=dtype, device=device)
    copied = there.clone()
    there.fill_(1)
    assert_same((there, copied), (torch.ones(5).to(dtype), torch.zeros(5).to(dtype)), device, EXACT)


@pytest.mark.parametrize("name", VIEWS)
def test_views(device: torch.device, name: str) -> None:
    here, there = matrix(CPU), matrix(device)
    ours, theirs = VIEWS[name](there), VIEWS[name](here)
    assert_same(ours, theirs, device, EXACT)
    assert (ours.stride(), ours.storage_offset()) == (theirs.stride(), theirs.storage_offset())
    if name != "flip":
        assert ours.untyped_storage().data_ptr() == there.untyped_storage().data_ptr()


@pytest.mark.parametrize("name", INDEXING)
def test_indexing(device: torch.device, name: str) -> None:
    assert_same(INDEXING[name](matrix(device)), INDEXING[name](matrix(CPU)), device, EXACT)


@pytest.mark.parametrize("name", ASSIGNMENTS)
def test_assignments(device: torch.device, name: str) -> None:
    here, there = matrix(CPU), matrix(device)
    for tensor in (here, there):
        ASSIGNMENTS[name](tensor)
    assert_same(there, here, device, EXACT)


def test_an_index_out_of_range_raises(device: torch.device) -> None:
    index = torch.tensor([9], device=device)
    with pytest.raises((RuntimeError, IndexError)):
        matrix(device)[index].cpu()
    assert matrix(device).sum().item() == 276


# Serialisation, printing, numbers of Python --------------------------------------------------------------------------


@by_dtype
def test_save_and_load(device: torch.device, dtype: torch.dtype) -> None:
    there = torch.arange(8).to(dtype).to(device)
    file = io.BytesIO()
    torch.save({"a": there, "view": there[2:]}, file)
    for location in (None, "cpu", device):
        file.seek(0)
        loaded = torch.load(file, map_location=location)
        assert loaded["a"].device == (CPU if location == "cpu" else device)
        assert_same(loaded["view"].cpu(), there[2:].cpu(), CPU, EXACT)


def test_pickle_and_copy(device: torch.device) -> None:
    there = torch.randn(3, 4, device=device).t()
    for other in (pickle.loads(pickle.dumps(there)), copy.copy(there), copy.deepcopy(there)):
        assert other.device == device
        assert torch.equal(other, there)


@by_dtype
def test_printing(device: torch.device, dtype: torch.dtype) -> None:
    here = torch.arange(2).to(dtype)  # no more than fit into a line with the device
    text = repr(here.to(device))
    assert device == CPU or f"device='{device}'" in text
    assert text.replace(f", device='{device}'", "") == repr(here)


@by_dtype
def test_numbers(device: torch.device, dtype: torch.dtype) -> None:
    here = torch.tensor([1, 0, 3]).to(dtype)
    assert here.to(device).tolist() == here.tolist()
    assert here.to(device)[2].item() == here[2].item()


NAN, LARGE = float("nan"), [2**63 - 1, -(2**63), 2**53 + 1, -(2**62) - 1, 3]


def with_nan(device: torch.device) -> torch.Tensor:
    return torch.tensor([[1.0, NAN, 3.0], [2.0, -1.0, 0.5], [NAN, 4.0, -NAN]], device=device)


def large(device: torch.device) -> torch.Tensor:
    return torch.tensor(LARGE, device=device)


def zeros(device: torch.device) -> torch.Tensor:
    return torch.tensor([-0.0, 0.0, -0.25, 0.25], device=device)


# What a device that computes with other numbers inside makes wrong.
NUMBERS: dict[str, Make] = {
    "NaN in amax": lambda d: with_nan(d).amax(1),
    "NaN in amin": lambda d: with_nan(d).amin(0),
    "NaN in max": lambda d: torch.stack([with_nan(d).max(), with_nan(d).min(), *with_nan(d).aminmax()]),
    "NaN in argmax": lambda d: torch.stack([with_nan(d).argmax(1), with_nan(d).argmin(1)]),
    "NaN in maximum": lambda d: torch.maximum(with_nan(d), with_nan(d).t()),
    "NaN in clamp": lambda d: with_nan(d).clamp(-0.5, 2),
    "NaN in sort": lambda d: with_nan(d).sort(1).values,
    "NaN in topk": lambda d: with_nan(d).topk(2, 1).values,
    "NaN in median": lambda d: torch.cat([with_nan(d).median(1).values, with_nan(d).nanmedian(1).values]),
    "NaN in sum": lambda d: torch.cat([with_nan(d).sum(1), with_nan(d).nansum(1)]),
    "NaN in relu": lambda d: with_nan(d).relu(),
    "NaN in comparisons": lambda d: with_nan(d) == with_nan(d),
    "large integers": lambda d: large(d).clone(),
    "large integers in sums": lambda d: torch.cat([large(d) + 1, large(d) - large(d).flip(0), large(d).cumsum(0)]),
    "large integers in products": lambda d: torch.cat([large(d) * 3, large(d) * large(d)]),
    "large integers in quotients": lambda d: torch.cat([large(d) // 7, large(d) % 7]),
    "large integers in comparisons": lambda d: torch.stack([large(d) > 2**53, large(d) == 2**53 + 1]),
    "large integers in sort": lambda d: large(d).sort().values,
    "large integers in max": lambda d: torch.stack([large(d).max(), large(d).min(), large(d)[2:].sum()]),
    "large integers in where": lambda d: torch.where(large(d) > 0, large(d), large(d) ^ -1),
    "zeros with a sign": lambda d: zeros(d).clone(),
    "zeros with a sign in neg": lambda d: -zeros(d),
    "zeros with a sign in abs": lambda d: zeros(d).abs(),
    "zeros with a sign in products": lambda d: zeros(d) * -1.0,
    "zeros with a sign in sums": lambda d: zeros(d) + -0.0,
    "zeros with a sign in rounding": lambda d: torch.cat([zeros(d).ceil(), zeros(d).trunc(), zeros(d).round()]),
    "zeros with a sign in sqrt": lambda d: zeros(d)[:2].sqrt(),
    "zeros with a sign in copysign": lambda d: torch.ones(4, device=d).copysign(zeros(d)),
    "zeros with a sign in float16": lambda d: zeros(d).half().float(),
    "zeros with a sign in indexing": lambda d: zeros(d)[torch.tensor([1, 0], device=d)],
    "53 bits in sums": lambda d: torch.full((3,), 2.0**-40, dtype=torch.float64, device=d) + 1,
    "53 bits in products": lambda d: torch.full((3,), 1 + 2.0**-40, dtype=torch.float64, device=d) * 3,
    "a count of more than a byte": lambda d: torch.ones(70_000, dtype=torch.bool, device=d).cumsum(0)[::997],
}


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_to_the_last_bit(device: torch.device, name: str) -> None:
    ours, theirs = NUMBERS[name](device), NUMBERS[name](CPU)
    assert_same(ours, theirs, device, EXACT)
    is_nan = theirs.isnan()
    assert torch.equal(ours.cpu().signbit() & ~is_nan, theirs.signbit() & ~is_nan), "a zero of the other sign"


PROMOTED = (torch.bool, torch.uint8, torch.int32, torch.int64, torch.bfloat16, torch.float32, torch.complex64)
PROMOTING: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "add": torch.add,
    "mul": torch.mul,
    "div": torch.div,
    "eq": torch.eq,
    "where": lambda x, y: torch.where(x == y, x, y),
    "cat": lambda x, y: torch.cat([x, y.expand(len(x))]),
}


@pytest.mark.parametrize("name", PROMOTING)
def test_two_dtypes(device: torch.device, name: str) -> None:
    """The result's dtype and numbers, for tensors of one dimension and of none."""
    call = PROMOTING[name]
    for first, second in itertools.product(PROMOTED, repeat=2):
        for other in (torch.tensor([2.5, 3.0]), torch.tensor(2.5)):
            pairs = [(torch.tensor([3, 1]).to(first).to(d), other.to(second).to(d)) for d in (device, CPU)]
            assert_same(call(*pairs[0]), call(*pairs[1]), device, {})


# More than one block of threads, than 2**16 elements, and no multiple of anything.
MANY = 2**17 + 3
LARGE_TENSORS: dict[str, Make] = {
    "arange": lambda d: torch.arange(MANY, device=d),
    "fill": lambda d: torch.full((MANY,), 7, dtype=torch.int16, device=d),
    "copy": lambda d: torch.arange(MANY).to(d),
    "strided copy": lambda d: torch.arange(2 * MANY).to(d)[1::2].clone(),
    "transposed copy": lambda d: torch.arange(515 * 259).to(d).view(515, 259).t().contiguous(),
    "cat": lambda d: torch.cat([torch.arange(MANY, device=d), torch.arange(5, device=d)]),
    "index": lambda d: torch.arange(MANY, device=d)[torch.arange(MANY - 1, -1, -1, device=d)],
    "gather": lambda d: (x := torch.arange(MANY, device=d)).gather(0, MANY - 1 - x),
    "scatter": lambda d: torch.zeros(MANY, device=d).scatter_(
        0, (x := torch.arange(MANY, device=d)).flip(0), x.float()
    ),
    "mask": lambda d: (x := torch.arange(MANY, device=d))[x % 7 == 3],
    "sum": lambda d: torch.arange(MANY, device=d).sum(),
    "sum of rows": lambda d: torch.arange(MANY - 3, device=d).view(-1, 4).sum(0),
    "max": lambda d: torch.stack([*torch.arange(MANY, device=d).max(0)]),
    "cumsum": lambda d: torch.arange(MANY, device=d).cumsum(0),
    "sort": lambda d: (torch.arange(MANY, device=d) * 7919 % MANY).sort().values,
    "where": lambda d: torch.where((x := torch.arange(MANY, device=d)) > MANY // 2, x, -x),
    "product of matrices": lambda d: torch.ones(300, 500, device=d) @ torch.ones(500, 301, device=d),
    "embedding": lambda d: torch.nn.functional.embedding(
        torch.arange(MANY, device=d) % 11, torch.arange(22.0, device=d).view(11, 2)
    ),
}


@pytest.mark.parametrize("name", LARGE_TENSORS)
def test_large_tensors(device: torch.device, name: str) -> None:
    assert_same(LARGE_TENSORS[name](device), LARGE_TENSORS[name](CPU), device, EXACT)


def test_python_protocols(device: torch.device) -> None:
    x = torch.tensor([1.5, 2.5], device=device)
    assert [float(value) for value in x] == [1.5, 2.5]
    assert (len(x), int(x[0]), bool(x[1] > 2), 2.5 in x) == (2, 1, True, True)
    assert numpy.asarray(x.cpu()).tolist() == [1.5, 2.5]
    assert f"{x[0]:.2f}" == "1.50"
    if device != CPU:
        with pytest.raises(TypeError):
            x.numpy()


def test_storages_are_shared_and_resized(device: torch.device) -> None:
    x = torch.arange(4.0, device=device)
    y = torch.empty(0, device=device).set_(x.untyped_storage(), 1, (2,), (1,))
    y.fill_(9)
    assert x.tolist() == [0, 9, 9, 3]
    x.untyped_storage().resize_(32)
    assert x.untyped_storage().nbytes() == 32
    assert x.tolist() == [0, 9, 9, 3]


def test_tensors_die(device: torch.device) -> None:
    if device.type == "cpu":
        pytest.skip("the CPU does not count its memory")
    before = torch.accelerator.memory_allocated()
    for _ in range(10):
        x = torch.randn(100, device=device, requires_grad=True)
        (x * x).sum().backward()
        del x
    torch.accelerator.synchronize()
    assert torch.accelerator.memory_allocated() == before
