"""Tensors of the device are made, viewed, resized, read and printed like any other."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import expecttest
import pytest
import torch

if TYPE_CHECKING:
    from tests.conftest import RunScript

Function = Callable[[torch.Tensor], torch.Tensor]

# Factories -----------------------------------------------------------------------------------------------------------

FACTORIES: dict[str, Callable[[torch.device], torch.Tensor]] = {
    "zeros": lambda d: torch.zeros(2, 3, device=d),
    "ones": lambda d: torch.ones(2, 3, dtype=torch.bool, device=d),
    "full": lambda d: torch.full((2, 3), 1.5, device=d),
    "full of integers": lambda d: torch.full((4,), 7, device=d),
    "full of a complex number": lambda d: torch.full((4,), 1 + 2j, device=d),
    "arange": lambda d: torch.arange(7, device=d),
    "arange with a step": lambda d: torch.arange(1, 2, 0.25, device=d),
    "arange backwards": lambda d: torch.arange(5, 0, -2, dtype=torch.int16, device=d),
    "tensor": lambda d: torch.tensor([[1, 2], [3, 4]], device=d),
    "scalar tensor": lambda d: torch.scalar_tensor(3.0, device=d),
    "zeros_like": lambda d: torch.zeros_like(torch.ones(3, 4, device=d).t()),
    "new_full": lambda d: torch.ones(2, device=d).new_full((3,), 4.0),
    "from a list": lambda d: torch.as_tensor([1.0, 2.0], device=d),
}


@pytest.mark.parametrize("name", FACTORIES)
def test_factories(device: torch.device, name: str) -> None:
    made, expected = FACTORIES[name](device), FACTORIES[name](torch.device("cpu"))
    assert made.device == device
    assert made.stride() == expected.stride()
    torch.testing.assert_close(made.cpu(), expected, rtol=0, atol=0)


@pytest.mark.parametrize("size", [(), (0,), (2, 0, 3), (2, 3)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.complex64, torch.bfloat16], ids=str)
def test_empty(device: torch.device, size: tuple[int, ...], dtype: torch.dtype) -> None:
    x = torch.empty(size, dtype=dtype, device=device)
    assert (x.shape, x.dtype, x.device) == (size, dtype, device)
    assert x.is_contiguous()
    assert x.untyped_storage().nbytes() == x.numel() * x.itemsize


def test_empty_with_memory_format(device: torch.device) -> None:
    assert torch.empty(2, 3, 4, 5, device=device, memory_format=torch.channels_last).stride() == (60, 1, 15, 3)


def test_empty_strided(device: torch.device) -> None:
    x = torch.empty_strided((2, 3), (1, 4), dtype=torch.float64, device=device)
    assert (x.stride(), x.untyped_storage().nbytes()) == ((1, 4), 80)


def test_compressed_factories_say_that_the_layout_is_not_supported() -> None:
    with pytest.raises(NotImplementedError, match="SparseCsr"):
        torch.empty(2, 3, layout=torch.sparse_csr, device="mtia")


def test_a_default_device(device: torch.device) -> None:
    with device:
        assert torch.ones(2).device == device
        assert torch.nn.Linear(2, 2).weight.device == device


# Filling -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8, torch.bool, torch.complex128], ids=str)
@pytest.mark.parametrize("view", [lambda x: x, lambda x: x.t(), lambda x: x[1:, ::2], lambda x: x[:0]])
def test_fill_and_zero(device: torch.device, dtype: torch.dtype, view: Function) -> None:
    x, expected = torch.zeros(3, 5, dtype=dtype, device=device), torch.zeros(3, 5, dtype=dtype)
    for tensor in (x, expected):
        view(tensor).fill_(1)
    assert torch.equal(x.cpu(), expected)
    for tensor in (x, expected):
        view(tensor)[:1].zero_()
    assert torch.equal(x.cpu(), expected)


def test_what_overlaps_itself_is_cleared(device: torch.device) -> None:
    x = torch.ones(2, device=device)
    x[:1].expand(3).zero_()
    assert x.tolist() == [0, 1]


def test_clearing_a_lazy_clone_leaves_its_source(device: torch.device) -> None:
    x = torch.ones(4, device=device)
    clone = torch._lazy_clone(x)
    assert clone.zero_() is clone
    assert (x.tolist(), clone.tolist()) == ([1] * 4, [0] * 4)


def test_fill_with_a_tensor(device: torch.device) -> None:
    x = torch.zeros(3, device=device)
    assert x.fill_(torch.tensor(2)).tolist() == [2, 2, 2]
    assert x.fill_(torch.tensor(3.5, device=device)).tolist() == [3.5, 3.5, 3.5]
    with pytest.raises(RuntimeError, match="0-dimension"):
        x.fill_(torch.ones(2, device=device))


def test_fill_checks_the_value(device: torch.device) -> None:
    with pytest.raises(RuntimeError, match="without overflow"):
        torch.zeros(3, dtype=torch.int32, device=device).fill_(2**40)


# Views ---------------------------------------------------------------------------------------------------------------

VIEWS: dict[str, Function] = {
    "view": lambda x: x.view(6, 4),
    "reshape": lambda x: x.reshape(2, -1),
    "_reshape_alias": lambda x: torch.ops.aten._reshape_alias(x, (2, 12), (12, 1)),
    "as_strided": lambda x: x.as_strided((3, 2), (2, 5), 3),
    "unfold": lambda x: x.unfold(1, 3, 2),
    "transpose": lambda x: x.t(),
    "permute": lambda x: x.view(2, 3, 4).permute(2, 0, 1),
    "expand": lambda x: x[:, :1].expand(4, 6),
    "slice": lambda x: x[1:3, ::2],
    "select": lambda x: x[2],
    "element": lambda x: x[2, 3],
    "diagonal": lambda x: x.diagonal(1),
    "split": lambda x: x.split(2)[1],
    "chunk": lambda x: x.chunk(2, 1)[1],
    "unbind": lambda x: x.unbind(1)[4],
    "narrow": lambda x: x.narrow(1, 2, 3),
    "squeeze": lambda x: x.view(4, 1, 6).squeeze(1),
    "unsqueeze": lambda x: x.unsqueeze(0),
    "flatten": lambda x: x.view(2, 2, 6).flatten(0, 1),
    "movedim": lambda x: x.movedim(0, 1),
    "view of bytes": lambda x: x.view(torch.uint8),
    "view of wider numbers": lambda x: x.view(torch.int64),
    "view_as_complex": lambda x: torch.view_as_complex(x.view(4, 3, 2)),
    "view_as_real": lambda x: torch.view_as_real(torch.view_as_complex(x.view(4, 3, 2))),
    "imag": lambda x: torch.view_as_complex(x.view(4, 3, 2)).imag,
    "detach": lambda x: x.detach(),
    "alias": lambda x: torch.ops.aten.alias(x),
}


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_shares_its_storage(device: torch.device, name: str) -> None:
    host = torch.arange(24.0).view(4, 6)
    base = host.to(device)
    view, expected = VIEWS[name](base), VIEWS[name](host)
    assert (view.shape, view.stride(), view.storage_offset()) == (
        expected.shape,
        expected.stride(),
        expected.storage_offset(),
    )
    assert torch.equal(view.cpu(), expected)
    assert view.untyped_storage().data_ptr() == base.untyped_storage().data_ptr()
    if name != "expand":
        view.zero_()
        expected.zero_()
        assert torch.equal(base.cpu(), host)


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_shares_its_version(device: torch.device, name: str) -> None:
    base = torch.arange(24.0, device=device).view(4, 6)
    view = VIEWS[name](base)
    before = base._version
    base.zero_()
    assert view._version == before + 1
    view.fill_(1) if name != "expand" else view[:, 0].fill_(1)
    assert base._version == before + 2


def test_unsafe_view_shares_memory_and_has_a_gradient(device: torch.device) -> None:
    base = torch.arange(24.0, device=device).requires_grad_()
    reshaped = torch.ops.aten._unsafe_view(base, [4, -1])
    assert (reshaped.shape, reshaped.data_ptr()) == ((4, 6), base.data_ptr())
    assert not reshaped._is_view()
    (reshaped * reshaped).sum().backward()
    assert base.grad is not None
    assert torch.equal(base.grad.cpu(), 2 * torch.arange(24.0))


def test_a_view_of_the_wrong_size_is_an_error(device: torch.device) -> None:
    with pytest.raises(RuntimeError, match="invalid for input of size 6"):
        torch.ones(6, device=device).view(4)
    with pytest.raises(IndexError, match="out of bounds"):
        torch.ones(3, device=device)[4]


# Resizing ------------------------------------------------------------------------------------------------------------


def test_resize_keeps_the_data(device: torch.device) -> None:
    x = torch.arange(6.0, device=device)
    assert x.resize_(2, 2).tolist() == [[0, 1], [2, 3]]
    assert x.resize_(6).tolist() == [0, 1, 2, 3, 4, 5]  # shrinking gave no memory back
    x.resize_(2**20)
    assert x[:6].tolist() == [0, 1, 2, 3, 4, 5]
    assert x.untyped_storage().nbytes() == 2**22
    x.fill_(1)
    assert x.sum().item() == 2**20


def test_resize_of_a_view_keeps_its_offset(device: torch.device) -> None:
    x = torch.arange(6.0, device=device)[4:]
    x.resize_(4)
    assert (x.storage_offset(), x[:2].tolist()) == (4, [4, 5])


def test_resize_grows_after_the_work_that_fills_the_old_memory(device: torch.device) -> None:
    x = torch.zeros(2**22, device=device)
    for _ in range(20):
        x.add_(1)
    x.resize_(2**23)
    x[2**22 :].fill_(20)
    assert (x.cpu() == 20).all()


def test_resize_of_nothing(device: torch.device) -> None:
    x = torch.empty(0, device=device).resize_(3)
    assert x.fill_(2).tolist() == [2, 2, 2]
    assert x.resize_(0).tolist() == []
    assert torch.empty(3, device=device).resize_as_(torch.ones(2, 2, device=device)).shape == (2, 2)


def test_set_takes_over_storages(device: torch.device) -> None:
    source = torch.arange(10.0, device=device)
    x = torch.ones(3, device=device)
    x.set_(source)  # type: ignore[call-overload]
    assert x.data_ptr() == source.data_ptr()
    assert x.tolist() == list(range(10))
    x.set_(source.untyped_storage())
    assert x.tolist() == list(range(10))
    x.set_(source.untyped_storage(), 2, (2, 3), (1, 2))
    assert x.tolist() == [[2, 4, 6], [3, 5, 7]]
    x.set_(source, 1, (2,))  # type: ignore[call-overload]
    assert x.tolist() == [1, 2]
    x.set_()  # type: ignore[call-overload]
    assert (x.shape, x.device) == ((0,), device)


def test_set_grows_a_storage_that_is_too_small(device: torch.device) -> None:
    source = torch.arange(4.0, device=device)
    x = torch.empty(0, device=device).set_(source.untyped_storage(), 2, (6,), (1,))
    assert x[:2].tolist() == [2, 3]
    assert source.untyped_storage().nbytes() == 32


def test_set_refuses_a_storage_of_another_device() -> None:
    with pytest.raises(RuntimeError, match="device"):
        torch.ones(3, device="mtia").set_(torch.ones(3).untyped_storage())


@pytest.mark.parametrize("function", [torch.add, torch.atan2], ids=["native", "fallback"])
def test_out_is_resized(device: torch.device, function: Callable[..., torch.Tensor]) -> None:
    x, y = torch.rand(4, 5), torch.rand(4, 5)
    out = torch.empty(0, device=device)
    assert function(x.to(device), y.to(device), out=out) is out
    torch.testing.assert_close(out.cpu(), function(x, y))
    wrong = torch.empty(3, device=device)
    with pytest.warns(UserWarning, match="An output with one or more elements was resized"):
        function(x.to(device), y.to(device), out=wrong)
    torch.testing.assert_close(wrong.cpu(), function(x, y))
    large = torch.empty(40, device=device)[10:]
    function(x.to(device), y.to(device), out=large.resize_(0))
    torch.testing.assert_close(large.cpu(), function(x, y))


# Reading and printing ------------------------------------------------------------------------------------------------


def test_items(device: torch.device) -> None:
    assert torch.tensor(2.5, device=device).item() == 2.5
    assert torch.tensor([[1 + 2j]], device=device).item() == 1 + 2j
    assert torch.tensor(2**60, device=device).item() == 2**60
    assert bool(torch.tensor(True, device=device)) is True
    assert int(torch.tensor(7.9, device=device)) == 7
    assert float(torch.tensor(3, device=device)) == 3.0
    assert [10, 20, 30][torch.tensor(1, device=device)] == 20
    assert torch.tensor([[1, 2], [3, 4]], device=device).tolist() == [[1, 2], [3, 4]]
    with pytest.raises(RuntimeError, match="a Tensor with 3 elements cannot be converted to Scalar"):
        torch.ones(3, device=device).item()


def test_an_item_waits_for_the_work_that_computes_it(device: torch.device) -> None:
    x = torch.zeros(2**22, device=device)
    for _ in range(20):
        x.add_(1)
    assert x[-1].item() == 20


def test_numpy_asks_for_cpu_first() -> None:
    x = torch.ones(3, device="mtia")
    with pytest.raises(TypeError, match=r"can't convert mtia:0 device type tensor to numpy\. Use Tensor\.cpu\(\)"):
        x.numpy()
    assert x.cpu().numpy().tolist() == [1, 1, 1]


def test_is_pinned_is_false_for_pageable_memory() -> None:
    assert not torch.ones(3).is_pinned()


def test_printing() -> None:
    x = torch.arange(6.0, device="mtia").view(2, 3) / 4
    expecttest.assert_expected_inline(
        str(x),
        """\
tensor([[0.0000, 0.2500, 0.5000],
        [0.7500, 1.0000, 1.2500]], device='mtia:0')""",
    )
    expecttest.assert_expected_inline(
        "\n".join(
            str(tensor)
            for tensor in (
                x[0, 1],
                x[:0],
                x.long(),
                x > 1,
                x.bfloat16()[0],
                torch.view_as_complex(x.view(3, 2)),
                x.clone().requires_grad_(),
                torch.arange(2000, device="mtia"),
                torch.tensor([1e-8, 1.0, float("nan"), float("inf")], device="mtia"),
            )
        ),
        """\
tensor(0.2500, device='mtia:0')
tensor([], device='mtia:0', size=(0, 3))
tensor([[0, 0, 0],
        [0, 1, 1]], device='mtia:0')
tensor([[False, False, False],
        [False, False,  True]], device='mtia:0')
tensor([0.0000, 0.2500, 0.5000], device='mtia:0', dtype=torch.bfloat16)
tensor([0.0000+0.2500j, 0.5000+0.7500j, 1.0000+1.2500j], device='mtia:0')
tensor([[0.0000, 0.2500, 0.5000],
        [0.7500, 1.0000, 1.2500]], device='mtia:0', requires_grad=True)
tensor([   0,    1,    2,  ..., 1997, 1998, 1999], device='mtia:0')
tensor([1.0000e-08, 1.0000e+00,        nan,        inf], device='mtia:0')""",
    )


def test_a_tensor_larger_than_two_gigabytes(run_script: RunScript) -> None:
    finished = run_script(
        """
        import torch
        x = torch.zeros(2**31 + 16, dtype=torch.uint8, device="mtia")
        x[-3:].fill_(7)
        assert x[-4:].tolist() == [0, 7, 7, 7]
        assert x.add_(1)[-4:].tolist() == [1, 8, 8, 8]
        """,
        TORCH_MTIA_MEMORY="3G",
    )
    finished.output()
