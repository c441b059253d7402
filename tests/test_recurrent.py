"""LSTM layers run oneDNN's kernel where the CPU does, with its results bit for bit. The rest is made of others."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

import torch_mtia
from tests.capturing import capture
from torch_mtia.backend import device_module, device_type

if TYPE_CHECKING:
    from tests.conftest import RunScript

STEPS, FEATURES, HIDDEN = 11, 5, 7
Values = Sequence[torch.Tensor | None]
LSTM = torch.ops.aten.mkldnn_rnn_layer.default
BF16 = pytest.param(
    torch.bfloat16,
    marks=pytest.mark.skipif(
        not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="oneDNN has no bfloat16 on this processor"
    ),
)
LAYERS: dict[str, dict[str, Any]] = {
    "plain": {},
    "without bias": {"bias": False},
    "bidirectional": {"bidirectional": True},
    "layers": {"num_layers": 3},
    "all": {"num_layers": 2, "bidirectional": True, "batch_first": True, "bias": False},
    "dropped": {"num_layers": 2, "dropout": 1.0},
}


class Called(torch.utils._python_dispatch.TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operators: list[object] = []

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.operators.append(function)
        return function(*args, **(kwargs or {}))


def fused_layers(function: Callable[[], object]) -> int:
    with Called() as called:
        function()
    return len([operator for operator in called.operators if operator is LSTM])


def networks(device: torch.device, **options: Any) -> tuple[nn.LSTM, nn.LSTM]:
    here = nn.LSTM(FEATURES, HIDDEN, **options)
    return here, copy.deepcopy(here).to(device)


def device_of(network: nn.LSTM) -> torch.device:
    return next(network.parameters()).device


def leaf(value: torch.Tensor, device: torch.device | str) -> torch.Tensor:
    return value.detach().to(device, copy=True).requires_grad_()


def differentiated(network: nn.LSTM, *inputs: torch.Tensor, which: slice = slice(None)) -> Values:
    """Results and all gradients; the gradients are of those results that `which` takes."""
    leaves = [leaf(value, device_of(network)) for value in inputs]
    states = (leaves[1], leaves[2]) if len(leaves) > 1 else None
    output, (hidden, cell) = network(leaves[0], states)
    results = [output, hidden, cell]
    torch.stack([(result.float() * (i + 1)).sin().sum() for i, result in enumerate(results[which])]).sum().backward()
    return [*results, *(value.grad for value in [*leaves, *network.parameters()])]


def assert_equal(actual: Values, expected: Values) -> None:
    assert len(actual) == len(expected)
    for ours, theirs in zip(actual, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0, check_device=False, check_stride=True)


def states(layers: int, batch: int, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(layers, batch, HIDDEN, dtype=dtype), torch.randn(layers, batch, HIDDEN, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, BF16])
@pytest.mark.parametrize("has_states", [False, True])
@pytest.mark.parametrize("name", LAYERS)
def test_results_and_gradients_are_those_of_the_cpu(
    device: torch.device, name: str, has_states: bool, dtype: torch.dtype
) -> None:
    here, there = (network.to(dtype) for network in networks(device, **LAYERS[name]))
    count = here.num_layers * (2 if here.bidirectional else 1)
    for batch in (1, 4):
        shape = (batch, STEPS, FEATURES) if here.batch_first else (STEPS, batch, FEATURES)
        inputs = [torch.randn(shape, dtype=dtype), *(states(count, batch, dtype) if has_states else ())]
        here.zero_grad()
        there.zero_grad()
        torch_mtia.fallback.reset()
        assert_equal(differentiated(there, *inputs), differentiated(here, *inputs))
        with torch.no_grad():
            moved = [value.to(device) for value in inputs]
            ours, theirs = (
                network(values[0], tuple(values[1:]) or None) for network, values in ((there, moved), (here, inputs))
            )
            assert_equal([ours[0], *ours[1]], [theirs[0], *theirs[1]])
            assert fused_layers(lambda: there(moved[0])) == count  # noqa: B023
        assert not torch_mtia.fallback.stats()


@pytest.mark.parametrize("which", [slice(i, i + 1) for i in range(3)], ids=["output", "hidden", "cell"])
def test_gradients_of_one_result(device: torch.device, which: slice) -> None:
    here, there = networks(device)
    x = torch.randn(STEPS, 3, FEATURES)
    assert_equal(differentiated(there, x, which=which), differentiated(here, x, which=which))


def test_gradients_of_the_input_only(device: torch.device) -> None:
    gradients = []
    for network in networks(device):
        x = leaf(torch.ones(STEPS, 3, FEATURES), device_of(network))
        network.requires_grad_(False)(x)[0].sum().backward()
        gradients.append([x.grad])
    assert_equal(gradients[1], gradients[0])


def test_one_tensor_as_both_states(device: torch.device) -> None:
    results = []
    state, values = torch.randn(1, 3, HIDDEN), torch.randn(STEPS, 3, FEATURES)
    for network in networks(device):
        x, h = (leaf(value, device_of(network)) for value in (values, state))
        output, _ = network(x, (h, h))
        output.sum().backward()
        results.append([output, x.grad, h.grad])
    assert_equal(results[1], results[0])


def test_strided_inputs_and_weights(device: torch.device) -> None:
    results = []
    values = torch.randn(FEATURES, 3, STEPS)
    weight = torch.randn(FEATURES, 4 * HIDDEN)
    for network in networks(device):
        where = device_of(network)
        network.weight_ih_l0 = nn.Parameter(weight.to(where).t())
        results.append([network(values.to(where).permute(2, 1, 0))[0]])
    assert_equal(results[1], results[0])


def test_double_backward(device: torch.device) -> None:
    results = []
    values = torch.randn(STEPS, 3, FEATURES)
    for network in networks(device):
        x = leaf(values, device_of(network))
        (gradient,) = torch.autograd.grad(network(x)[0].sin().sum(), x, create_graph=True)
        results.append([gradient, *torch.autograd.grad(gradient.square().sum(), [x, *network.parameters()])])
    for ours, theirs in zip(results[1], results[0], strict=True):
        torch.testing.assert_close(ours, theirs, check_device=False)


@pytest.mark.skipif(not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="oneDNN has no bfloat16 here")
def test_autocast(device: torch.device) -> None:
    results = []
    values = torch.randn(STEPS, 3, FEATURES)
    for network in networks(device, num_layers=2, bidirectional=True):
        with torch.autocast(device_of(network).type, torch.bfloat16):
            results.append(differentiated(network, values))
    assert {value.dtype for value in results[1][:3] if value is not None} == {torch.bfloat16}
    assert_equal(results[1], results[0])


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_evaluation(device: torch.device, mode: Callable[[], Any]) -> None:
    here, there = networks(device)
    x = torch.randn(STEPS, 3, FEATURES)
    with mode():
        assert_equal([there(x.to(device))[0]], [here(x)[0]])


def test_dropout_between_layers_is_drawn_on_the_device(device: torch.device) -> None:
    _, there = networks(device, num_layers=2, dropout=0.5)
    x = torch.randn(STEPS, 3, FEATURES, device=device)
    drawn = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        drawn.append(there(x)[0].cpu())
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


# Where the CPU has no such kernel -------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize(
    ("options", "dtype"), [({"proj_size": 3}, torch.float32), ({}, torch.float64)], ids=["projections", "float64"]
)
def test_what_onednn_does_not_serve(device: torch.device, options: dict[str, int], dtype: torch.dtype) -> None:
    here, there = (network.to(dtype) for network in networks(device, **options))
    x = torch.randn(STEPS, 3, FEATURES, dtype=dtype)
    assert fused_layers(lambda: there(x.to(device))) == 0
    for ours, theirs in zip(differentiated(there, x), differentiated(here, x), strict=True):
        torch.testing.assert_close(ours, theirs, check_device=False)


def test_packed_sequences(device: torch.device) -> None:
    values, lengths = torch.randn(STEPS, 3, FEATURES), torch.tensor([STEPS, 4, 2])
    here, there = (
        network(nn.utils.rnn.pack_padded_sequence(values.to(device_of(network)), lengths))[0].data
        for network in networks(device, bidirectional=True)
    )
    torch.testing.assert_close(there, here, check_device=False)


def test_without_onednn(device: torch.device) -> None:
    here, there = networks(device)
    x = torch.randn(STEPS, 3, FEATURES)
    with torch.backends.mkldnn.flags(enabled=False):
        assert fused_layers(lambda: there(x.to(device))) == 0
    torch.testing.assert_close(there(x.to(device))[0], here(x)[0], check_device=False)


@pytest.mark.parametrize("batch_first", [False, True])
def test_empty_batches(device: torch.device, batch_first: bool) -> None:
    here, there = networks(device, batch_first=batch_first)
    x = torch.randn((0, STEPS, FEATURES) if batch_first else (STEPS, 0, FEATURES))
    assert there(x.to(device))[0].shape == here(x)[0].shape


@pytest.mark.in_tree("behind PrivateUse1 upstream takes a cell without forward derivatives")
def test_forward_derivatives(device: torch.device) -> None:
    _, there = networks(device)
    x = torch.randn(3, 2, FEATURES, device=device)
    tangent: torch.Tensor = torch.func.jvp(lambda value: there(value)[0], (x,), (torch.ones_like(x),))[1]
    step = 1e-2
    expected = (there(x + step)[0] - there(x - step)[0]) / (2 * step)
    torch.testing.assert_close(tangent, expected, rtol=1e-2, atol=1e-3)


# Arguments ------------------------------------------------------------------------------------------------------------


def layer_arguments(device: torch.device, **changed: Any) -> dict[str, Any]:
    tensors: dict[str, torch.Tensor] = {
        "input": torch.randn(STEPS, 3, FEATURES, device=device),
        "weight0": torch.randn(4 * HIDDEN, FEATURES, device=device),
        "weight1": torch.randn(4 * HIDDEN, HIDDEN, device=device),
        "weight2": torch.randn(4 * HIDDEN, device=device),
        "weight3": torch.randn(4 * HIDDEN, device=device),
        "hx_": torch.randn(1, 3, HIDDEN, device=device),
        "cx_": torch.randn(1, 3, HIDDEN, device=device),
    }
    numbers: dict[str, Any] = {"batch_sizes": [], "mode": 2, "hidden_size": HIDDEN, "num_layers": 1}
    flags = {"reverse": False, "has_biases": True, "bidirectional": False, "batch_first": False, "train": True}
    return {**tensors, **numbers, **flags, **changed}


@pytest.mark.parametrize("dtype", [torch.float32, BF16])
def test_the_operator_makes_the_results_of_the_cpu_with_its_workspace(device: torch.device, dtype: torch.dtype) -> None:
    for steps, batch, features, hidden in ((1, 1, 1, 1), (2, 3, 5, 7), (33, 8, 64, 64), (7, 130, 16, 300)):
        network = nn.LSTM(features, hidden).to(dtype)
        state = torch.randn(1, batch, hidden, dtype=dtype)
        tensors = [torch.randn(steps, batch, features, dtype=dtype), *network.parameters(), state, state.clone()]
        for reverse, is_kept in itertools.product((False, True), repeat=2):
            rest: tuple[Any, ...] = (reverse, [], 2, hidden, 1, True, False, False, True)
            with torch.set_grad_enabled(is_kept):
                expected = LSTM(*tensors, *rest)
                actual = LSTM(*(tensor.detach().to(device) for tensor in tensors), *rest)
            assert_equal(list(actual[:3]), [result.detach() for result in expected[:3]])
            assert (actual[3].shape == expected[3].shape) if is_kept else (actual[3] is None)


@pytest.mark.parametrize("name", ["input", "weight0", "weight1", "weight2", "weight3", "hx_", "cx_"])
def test_sizes_are_checked_at_the_call(device: torch.device, name: str) -> None:
    right = layer_arguments(device)
    with pytest.raises(RuntimeError, match="mkldnn_rnn_layer: expected"):
        torch.ops.aten.mkldnn_rnn_layer(**right | {name: right[name][..., :-1]})


def test_other_kinds_of_cells_are_refused(device: torch.device) -> None:
    with pytest.raises(RuntimeError, match="only LSTM"):
        torch.ops.aten.mkldnn_rnn_layer(**layer_arguments(device, mode=3))


def test_dtypes_without_a_kernel_raise_at_the_call(device: torch.device) -> None:
    arguments = layer_arguments(device)
    doubles = {name: value.double() for name, value in arguments.items() if isinstance(value, torch.Tensor)}
    with pytest.raises(RuntimeError):
        torch.ops.aten.mkldnn_rnn_layer(**arguments | doubles)


# Where it meets other features ----------------------------------------------------------------------------------------


@pytest.mark.in_tree("MTIAGraph")
def test_a_graph_replays_with_other_inputs_and_weights(device: torch.device) -> None:
    here, there = networks(device, num_layers=2, bidirectional=True)
    x = torch.randn(STEPS, 3, FEATURES, device=device)
    graph, output = capture(lambda: there(x)[0])
    for _ in range(2):
        values = torch.randn(STEPS, 3, FEATURES)
        x.copy_(values)
        with torch.no_grad():
            for ours, theirs in zip(there.parameters(), here.parameters(), strict=True):
                ours.copy_(theirs.mul_(0.5))
        graph.replay()
        assert_equal([output], [here(values)[0]])


@pytest.mark.in_tree("MTIAGraph")
def test_a_graph_of_a_training_step(device: torch.device) -> None:
    here, there = networks(device)
    values = torch.randn(STEPS, 3, FEATURES)
    x = values.to(device)
    there(x)[0].sum().backward()  # makes the gradients

    def step(network: nn.LSTM, value: torch.Tensor) -> None:
        for parameter in network.parameters():
            if parameter.grad is not None:
                parameter.grad.zero_()
        network(value)[0].square().sum().backward()
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.sub_(parameter.grad, alpha=0.01)  # type: ignore[arg-type]

    graph, _ = capture(lambda: step(there, x))
    for _ in range(3):
        graph.replay()
        step(here, values)
    torch.testing.assert_close(list(there.parameters()), list(here.parameters()), check_device=False)


def test_side_streams(device: torch.device) -> None:
    module = device_module()
    here, there = networks(device)
    values = torch.randn(STEPS, 3, FEATURES)
    x = values.to(device)
    module.synchronize()
    with module.stream(module.Stream(device)):
        actual = differentiated(there, x)
    module.synchronize()
    assert_equal(actual, differentiated(here, values))


def test_several_devices(run_script: RunScript) -> None:
    name = device_type()
    said = run_script(
        f"""
        import copy, torch
        here = torch.nn.LSTM(5, 7)
        x = torch.randn(11, 3, 5)
        for index in (1, 0):
            there = copy.deepcopy(here).to("{name}:%d" % index)
            output, _ = there(x.to("{name}:%d" % index))
            output.sum().backward()
            print(output.device.index, torch.equal(output.cpu(), here(x)[0]), there.weight_hh_l0.grad.device.index)
        """,
        TORCH_MTIA_DEVICES="2",
    ).output()
    assert said.split() == ["1", "True", "1", "0", "True", "0"]


def test_compiled_inference_calls_the_kernel_and_training_does_not(device: torch.device) -> None:
    """The kernel keeps what its backward needs only while gradients are enabled, which they are not in a graph."""
    _, there = networks(device)
    x = torch.randn(3, 2, FEATURES, device=device)
    graphs: list[torch.fx.GraphModule] = []

    def backend(module: torch.fx.GraphModule, _: Any) -> Callable[..., Any]:
        graphs.append(module)
        return module.forward

    from torch._dynamo.backends.common import aot_autograd

    with torch._dynamo.config.patch(allow_rnn=True):
        compiled = torch.compile(there, backend=aot_autograd(fw_compiler=backend), fullgraph=True)
        with torch.no_grad():
            torch.testing.assert_close(compiled(x)[0], there(x)[0])
        assert LSTM in [node.target for node in graphs[0].graph.nodes]
        compiled(x)[0].sum().backward()
    assert LSTM not in [node.target for graph in graphs[1:] for node in graph.graph.nodes]


def test_export_keeps_the_layer(device: torch.device) -> None:
    _, there = networks(device)
    x = torch.randn(STEPS, 3, FEATURES, device=device)
    program = torch.export.export(there, (x,))
    assert torch.ops.aten.lstm.input in [node.target for node in program.graph.nodes]
    assert_equal([program.module()(x)[0]], [there(x)[0]])
