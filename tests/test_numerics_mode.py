"""Setting the mode of `torch_mtia.numerics`: docs/accuracy.md, "Bits that are promised"."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch._inductor import config
from torch._inductor.custom_graph_pass import CustomGraphPass

import torch_mtia
from tests.bits import randn, same
from torch_mtia.backend import device_type

if TYPE_CHECKING:
    from tests.conftest import RunScript

Tensor = torch.Tensor
Function = Callable[..., Any]


def modes_compiled_for(x: Tensor) -> list[str]:
    """The modes in which a function of `x` is compiled, if it is called in these."""
    compiled_for = []

    def backend(graph: torch.fx.GraphModule, _inputs: list[Tensor]) -> Function:
        compiled_for.append(torch_mtia.numerics.current())
        return graph.forward

    torch._dynamo.reset()
    compiled = torch.compile(lambda x: x + 1, backend=backend)
    for mode in ("default", "batch_invariant", "default", "eager_equals_compiled", "batch_invariant"):
        with torch_mtia.numerics(mode):
            compiled(x)
    return compiled_for


def test_a_function_is_compiled_for_each_mode() -> None:
    assert modes_compiled_for(randn(3)) == [*torch_mtia.environment.NUMERICS[::2], "eager_equals_compiled"]


def test_functions_of_other_devices_are_compiled_once() -> None:
    assert modes_compiled_for(torch.ones(3)) == ["default"]


@pytest.mark.parametrize("kind", ["cpu", device_type()])
def test_only_functions_of_the_device_are_compiled_with_the_options_of_a_mode(kind: str) -> None:
    options = []

    class Pass(CustomGraphPass):
        def __call__(self, _graph: torch.fx.Graph) -> None:
            options.append((config.batch_invariant, config.emulate_precision_casts, config.pattern_matcher))

        def uuid(self) -> object:
            return "test of options"

    torch._dynamo.reset()
    with torch_mtia.numerics("batch_invariant"), config.patch(joint_custom_pre_pass=Pass(), force_disable_caches=True):
        torch.compile(lambda x: x * 2 + 1)(torch.ones(3, device=kind))
    assert options == [(False, False, True) if kind == "cpu" else (True, True, False)]


def test_a_compiled_function_may_set_the_mode() -> None:
    def function(x: Tensor) -> Tensor:
        with torch_mtia.numerics("batch_invariant"):
            return x @ x.t() + 1

    x = randn(40, 300)
    torch._dynamo.reset()
    assert same(torch.compile(function)(x), function(x))
    assert torch_mtia.numerics.current() == "default"


def test_the_mode_is_restored() -> None:
    assert torch_mtia.numerics.current() == "default"
    with torch_mtia.numerics("batch_invariant"):
        with torch_mtia.numerics("eager_equals_compiled"):
            assert torch_mtia.numerics.current() == "eager_equals_compiled"
        assert torch_mtia.numerics.current() == "batch_invariant"
        with pytest.raises(KeyError), torch_mtia.numerics("default"):
            raise KeyError
        assert torch_mtia.numerics.current() == "batch_invariant"
    assert torch_mtia.numerics.current() == "default"
    torch_mtia.numerics("batch_invariant")
    assert torch_mtia.numerics.current() == "batch_invariant"
    torch_mtia.numerics("default")
    assert torch_mtia.numerics.current() == "default"


@pytest.mark.parametrize("mode", ["batch-invariant", "", None])
def test_an_unknown_mode_raises(mode: Any) -> None:
    with pytest.raises(ValueError, match="'default', 'eager_equals_compiled', 'batch_invariant'"):
        torch_mtia.numerics(mode)
    assert torch_mtia.numerics.current() == "default"


def test_the_mode_is_the_process_s() -> None:
    x, w, found = randn(33, 300), randn(300, 70), []
    with torch_mtia.numerics("batch_invariant"):
        expected = (x @ w)[:1]
        thread = threading.Thread(target=lambda: found.append(x[:1] @ w))
        thread.start()
        thread.join()
    assert same(expected, found[0])


def test_a_variable_sets_the_mode(run_script: RunScript) -> None:
    script = "import torch, torch_mtia; print(torch_mtia.numerics.current(), torch_mtia._C._is_batch_invariant())"
    assert run_script(script, TORCH_MTIA_NUMERICS="batch_invariant").output().strip() == "batch_invariant True"
    wrong = "import warnings; warnings.simplefilter('ignore'); import torch; torch.empty(1, device='mtia')"
    assert "Valid: `default`" in run_script(wrong, TORCH_MTIA_NUMERICS="invariant").stderr
