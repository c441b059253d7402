"""torch.compile on mtia: results as on the CPU, by kernels of the device, through the caches, without touching the
device where only code is made."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
import torch.nn.functional as F
from torch._dynamo.utils import counters
from torch._inductor.utils import run_and_get_code

from tests.compiled import generated, kernels
from torch_mtia import environment, source_digest

if TYPE_CHECKING:
    from tests.conftest import RunScript


def attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(query, key, value, is_causal=True)


PROGRAMS: dict[str, tuple[Callable[..., torch.Tensor], tuple[tuple[int, ...], ...]]] = {
    "pointwise": (lambda x, y: F.silu(x) * y, ((70, 33), (70, 33))),
    "softmax": (lambda x: torch.softmax(x, -1), ((70, 33),)),
    "layer_norm": (lambda x, w, b: F.layer_norm(x, (33,), w, b), ((70, 33), (33,), (33,))),
    "linear": (lambda x, w, b: F.gelu(F.linear(x, w, b)), ((30, 40), (50, 40), (50,))),
    "batch_norm": (lambda x: F.batch_norm(x, None, None, training=True), ((8, 6, 5, 5),)),
    "convolution": (lambda x, w: F.max_pool2d(F.relu(F.conv2d(x, w, padding=1)), 2), ((2, 3, 8, 8), (4, 3, 3, 3))),
    "attention": (attention, ((2, 3, 16, 8), (2, 3, 16, 8), (2, 3, 16, 8))),
    "sums": (lambda x: x.sum(0) * x.var() + x.cumsum(1).amax(1).mean(), ((70, 33),)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_and_its_gradients_are_those_of_the_cpu(name: str) -> None:
    function, shapes = PROGRAMS[name]
    expected_inputs = [torch.randn(shape, requires_grad=True) for shape in shapes]
    inputs = [x.detach().to("mtia").requires_grad_() for x in expected_inputs]
    expected = function(*expected_inputs)
    result, code = generated(function, *inputs, fullgraph=True)
    assert isinstance(result, torch.Tensor)
    torch.testing.assert_close(result.cpu(), expected)
    gradient = torch.randn_like(expected)
    expected.backward(gradient)
    result.backward(gradient.to("mtia"))
    for x, expected_x in zip(inputs, expected_inputs, strict=True):
        torch.testing.assert_close(x.grad.cpu() if x.grad is not None else None, expected_x.grad)
    assert "import mtia.host_runtime.torch_mtia.dynamic_library" in code


def test_pointwise_operators_become_one_kernel() -> None:
    _, code = generated(lambda x, y: (x.sin() + y) * x.exp(), torch.randn(50, device="mtia"), torch.ones(50).to("mtia"))
    assert len(kernels(code)) == 1
    assert "empty_strided_mtia(" in code


def test_layer_norm_is_the_devices_own_kernel() -> None:
    x = torch.randn(6, 33, dtype=torch.bfloat16, device="mtia")
    weight = torch.randn(33, device="mtia")
    result, code = generated(lambda x, w: torch.native_layer_norm(x, (33,), w, None, 1e-5), x, weight)
    assert "torch.ops.aten.native_layer_norm.default" in code
    assert isinstance(result, tuple)
    assert [part.dtype for part in result] == [torch.bfloat16] * 3  # what the meta function promises


@pytest.mark.sampled(4)
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("dimensions", [1, 2, 3])
@pytest.mark.parametrize("channels_last", [False, True])
def test_convolutions_have_the_strides_that_compiled_code_expects(
    channels_last: bool, dimensions: int, transposed: bool
) -> None:
    """Inductor lays out the operands of convolutions of many channels anew, channels last."""
    name = f"conv_transpose{dimensions}d" if transposed else f"conv{dimensions}d"
    function = getattr(F, name)
    x = torch.randn(2, 32, *(6,) * dimensions, requires_grad=True)
    weight = torch.randn(32, 32, *(3,) * dimensions, requires_grad=True)
    formats = {2: torch.channels_last, 3: torch.channels_last_3d}
    if channels_last and dimensions in formats:
        x = x.detach().to(memory_format=formats[dimensions]).requires_grad_()
    operands = [operand.detach().to("mtia").requires_grad_() for operand in (x, weight)]
    expected = function(x, weight) + 1
    result, _ = generated(lambda x, w: function(x, w) + 1, *operands)
    assert isinstance(result, torch.Tensor)
    torch.testing.assert_close(result.cpu(), expected, rtol=1e-4, atol=1e-4)
    expected.square().sum().backward()
    result.square().sum().backward()
    for operand, reference in zip(operands, (x, weight), strict=True):
        assert operand.grad is not None
        torch.testing.assert_close(operand.grad.cpu(), reference.grad, rtol=1e-3, atol=1e-2)


def test_dynamic_shapes_are_compiled_once() -> None:
    function = torch.compile(lambda x: (x * 2).sum(1), dynamic=True, fullgraph=True)
    counters.clear()
    for size in (7, 20, 300):
        x = torch.randn(size, size + 1)
        torch.testing.assert_close(function(x.to("mtia")).cpu(), (x * 2).sum(1))
    assert counters["stats"]["unique_graphs"] == 1


def test_random_numbers_follow_the_seed() -> None:
    dropout = torch.compile(lambda x: F.dropout(x, 0.3))
    x = torch.ones(5000, device="mtia")
    results = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        results.append(dropout(x))
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])
    assert 0.65 < (results[0] != 0).float().mean() < 0.75


def test_random_numbers_are_those_of_eager_on_request() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return F.dropout(x, 0.3) + torch.randn(5, 6, device=x.device).sum()

    x = torch.ones(100, device="mtia")
    torch.manual_seed(1)
    expected = function(x)
    torch.manual_seed(1)
    compiled = torch.compile(function, options={"fallback_random": True})
    torch.testing.assert_close(compiled(x), expected)


def test_mutated_arguments_and_views() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        x[:, 1].mul_(3)
        return x.t()[1:].add_(1)

    x = torch.randn(4, 5)
    on_device = x.to("mtia")
    result, _ = generated(function, on_device)
    assert isinstance(result, torch.Tensor)
    torch.testing.assert_close(result.cpu(), function(x))
    torch.testing.assert_close(on_device.cpu(), x)


def test_a_scalar_on_the_cpu_fills() -> None:
    x = torch.randn(30)
    result, _ = generated(lambda x: x.masked_fill(x > 0, torch.tensor(-2.0)), x.to("mtia"))
    assert isinstance(result, torch.Tensor)
    torch.testing.assert_close(result.cpu(), x.masked_fill(x > 0, -2.0))


def test_a_name_longer_than_an_image_has_room_for() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        for operator in (F.logsigmoid, F.hardsigmoid, F.leaky_relu, F.hardswish, F.softplus, F.hardtanh, F.softsign):
            x = operator(x) + 1
        return torch.logaddexp(torch.copysign(x.reciprocal(), x), x)

    x = torch.randn(30, 40)
    compiled = torch.compile(function)
    result, code = run_and_get_code(compiled, x.to("mtia"))
    torch.testing.assert_close(result.cpu(), function(x))
    assert any(len(name) > 127 for name in kernels("\n".join(code)))


def test_cached_code_belongs_to_this_version_of_the_package() -> None:
    from torch._inductor.utils import fresh_cache

    from torch_mtia.inductor import cache_key, config

    def misses() -> int:
        torch._dynamo.reset()
        counters.clear()
        torch.compile(lambda x: x.sin() + 1)(torch.ones(3, device="mtia"))
        return counters["inductor"]["fxgraph_cache_miss"]

    assert config._identity == cache_key.identity()
    with fresh_cache():
        assert [misses(), misses()] == [1, 0]
        with config.patch(_identity="another version"):
            assert [misses(), misses()] == [1, 0]


def test_cached_code_belongs_to_the_cores_and_the_driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from torch_mtia.inductor import cache_key

    here = cache_key.identity()
    assert cache_key.identity() == here
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(99)))
    assert "99 cores" in cache_key.identity()
    monkeypatch.undo()
    library = tmp_path / "libother.so"
    library.write_bytes(environment.settings().runtime.read_bytes() + b"built again")
    settings = environment.settings()._replace(runtime=library)
    monkeypatch.setattr(environment, "settings", lambda: settings)
    assert cache_key.identity() != here


def test_cached_code_belongs_to_the_places_of_views_that_share_memory() -> None:
    def written(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        a.add_(b)
        b.add_(a)
        return a + b

    from torch._inductor.utils import fresh_cache

    with fresh_cache():
        for size, offset in ((200, 0), (200, 100), (300, 100), (300, 200)):
            torch._dynamo.reset()  # as another process that finds the cache
            x = torch.randn(size)
            y = x.to("mtia")
            result = torch.compile(written)(y[:100], y[offset : offset + 100])
            assert torch.equal(result.cpu(), written(x[:100], x[offset : offset + 100])), (size, offset)
            assert torch.equal(y.cpu(), x), (size, offset)
        torch._dynamo.reset()
        counters.clear()
        torch.compile(written)(y[:100], y[100:200])
        assert counters["aot_autograd"]["autograd_cache_hit"] == 1


def test_measured_times_belong_to_this_version_of_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor.codecache import CacheBase

    from torch_mtia.inductor import cache_key

    path = CacheBase.get_local_cache_path()
    monkeypatch.setattr(cache_key, "identity", lambda: "another version")
    assert CacheBase.get_local_cache_path().parent == path.parent
    assert CacheBase.get_local_cache_path() != path


def test_a_graph_is_as_it_was_where_upstream_cannot_simplify_it() -> None:
    """Upstream sees one of the two results in place of both: for as long as it works."""
    from torch.fx.experimental.proxy_tensor import make_fx

    from torch_mtia.upstream_gates.inductor import results_apart

    x, weight = torch.randn(4, 8, device="mtia"), torch.randn(8, device="mtia")
    traced = make_fx(lambda x, w: torch.native_layer_norm(x, (8,), w, None, 1e-5)[0], tracing_mode="fake")(x, weight)

    def kinds() -> list[type]:
        return [type(node.meta.get("val")) for node in traced.graph.nodes]

    def fails(_graph: torch.fx.Graph) -> torch.fx.Graph:
        assert kinds() != before
        raise ValueError("upstream's")

    before = kinds()
    assert tuple in before
    with pytest.raises(ValueError, match="upstream's"):
        results_apart(fails)(traced.graph)
    assert kinds() == before


def test_what_chooses_code_by_version_is_part_of_the_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digests = set()
    original = source_digest.ROOT
    monkeypatch.setattr(source_digest, "ROOT", tmp_path / "torch_mtia")
    shutil.copytree(original, tmp_path / "torch_mtia", ignore=shutil.ignore_patterns("*.so", "lib", "include"))
    for changed in (None, "torch_version.py", "environment.py", "triton/lanes.py", "triton/analyses/masks.py"):
        if changed is not None:
            with (tmp_path / "torch_mtia" / changed).open("a") as module:
                module.write("# changed\n")
        digests.add(source_digest.source_digest.__wrapped__("triton"))
    assert len(digests) == 5


def test_a_process_that_compiles_does_not_touch_the_device(run_script: RunScript) -> None:
    script = """
        import mtia.host_runtime.torch_mtia.dynamic_library
        from mtia.host_runtime.torch_mtia.acc_flags import build_codename
        import torch, triton
        import torch_mtia.triton.driver
        print(build_codename().startswith(("x86-64", "aarch64")), torch_mtia.triton.driver.MTIADriver.is_active())
        print(torch.mtia.is_initialized())
    """
    assert run_script(script).output() == "True True\nFalse\n"


def test_kernels_are_compiled_in_other_processes_and_cached(run_script: RunScript, tmp_path: Path) -> None:
    script = """
        import torch
        from torch._dynamo.utils import counters
        function = torch.compile(lambda x: (torch.softmax(x, -1), x.cos().sum(0)))
        x = torch.randn(40, 50, device="mtia")
        for result, expected in zip(function(x), (torch.softmax(x, -1), x.cos().sum(0))):
            torch.testing.assert_close(result, expected)
        print(counters["inductor"]["fxgraph_cache_hit"])
    """
    for expected in ("0\n", "1\n"):
        finished = run_script(script, TORCHINDUCTOR_CACHE_DIR=str(tmp_path), TORCHINDUCTOR_COMPILE_THREADS="2")
        assert finished.output() == expected
