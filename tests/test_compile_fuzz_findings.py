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
