"""Programs that random ones (tests/test_compile_fuzz.py) found to be computed wrongly, each as small as it got."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch


@pytest.mark.parametrize("function", [torch.argmax, torch.argmin])
@pytest.mark.parametrize("keepdim", [False, True])
def test_an_index_into_all_dimensions_counts_in_their_order_not_in_that_of_memory(
    function: Callable[..., torch.Tensor], keepdim: bool
) -> None:
    x = torch.randperm(3 * 4 * 5).view(4, 5, 3).permute(2, 0, 1)

    def program(x: torch.Tensor) -> torch.Tensor:
        return function(x.to(torch.int16) * 2, keepdim=keepdim)

    assert torch.equal(torch.compile(program)(x.to("mtia")).cpu(), program(x))


def test_a_backward_leaves_alone_what_the_forward_returned_even_if_it_computed_the_same_for_itself() -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.cummax(0)[0].logcumsumexp(0), x.cummax(0)[0].view(2, 4)

    first, second = torch.compile(program)(torch.arange(8.0, device="mtia").requires_grad_())
    before = second.detach().clone()
    (first.sum() + second.sum()).backward()
    assert torch.equal(second, before)


def test_results_of_equal_operators_with_several_results_do_not_share_memory() -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return *x.cummax(0), *x.cummax(0), *x.sort(0), *x.sort(0)

    results = torch.compile(program)(torch.arange(8.0, device="mtia").requires_grad_())
    assert len({result.data_ptr() for result in results}) == len(results)


@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
def test_a_tensor_that_is_put_into_itself(mode: str | None) -> None:
    def program(x: torch.Tensor, index: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x * 2
        z = x - 1
        return y.index_put((index,), y, accumulate=True), z.index_put((index,), z.flip(0)), x[1:].add(1)

    x, index = torch.arange(49.0).view(7, 7), torch.tensor([1, 2, 3, 3, 0, 0, 6])
    compiled = torch.compile(program, mode=mode)
    for _ in range(3):
        actual = compiled(x.to("mtia"), index.to("mtia"))
        assert all(map(torch.equal, (result.cpu() for result in actual), program(x, index)))
