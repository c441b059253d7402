"""The constants of packages: updated while others run, swapped, folded, freed."""

from __future__ import annotations

import gc
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from torch import Tensor, nn

import torch_mtia
from tests import packages
from tests.packages import EXAMPLE, Classifier, MakePackage, expected, inputs, load, take_all, weights_of

if TYPE_CHECKING:
    from tests.conftest import RunScript

make_package, classifier, without_weights = packages.make_package, packages.classifier, packages.without_weights
_without_gradients = packages.without_gradients


@pytest.mark.wide
def test_constants_are_updated_at_run_time(classifier: Path) -> None:
    model = load(classifier)
    assert set(model.get_constant_fqns()) == set(Classifier().state_dict())
    other = Classifier()
    for weight in other.parameters():
        weight.mul_(-2)
    model.load_constants(weights_of(other), check_full_update=True)
    torch.testing.assert_close(model(inputs(5)).cpu(), other(inputs(5, "cpu")))


def test_constants_are_updated_between_the_runs_of_other_threads(classifier: Path) -> None:
    model = load(classifier, num_runners=2)
    networks = [Classifier(), Classifier()]
    for weight in networks[1].parameters():
        weight.mul_(-2)
    weights = [weights_of(network) for network in networks]
    wanted = [network(inputs(5, "cpu")) for network in networks]
    done = threading.Event()
    ran = threading.Semaphore(0)
    x = inputs(5)

    def run() -> None:
        while not done.is_set():
            result = model(x).cpu()
            assert any(torch.allclose(result, each, rtol=1e-4) for each in wanted)
            ran.release()

    threads = 3  # one more than there are runners
    with ThreadPoolExecutor(threads) as pool:
        runs = [pool.submit(run) for _ in range(threads)]
        try:
            for turn in range(100):
                model.load_constants(weights[turn % 2], check_full_update=True)
                for _ in range(20):
                    assert ran.acquire(timeout=60) or any(each.done() for each in runs)
        finally:
            done.set()
        for each in runs:
            each.result()
    torch.testing.assert_close(model(inputs(5)).cpu(), wanted[1])


BUFFERS = """
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
torch::inductor::AOTIModelPackageLoader& package(const std::string& path) {
  static auto* const loader = new torch::inductor::AOTIModelPackageLoader(path);
  return *loader;
}
at::Tensor run(const std::string& path, const at::Tensor& x) { return package(path).run({x}).at(0); }
void swap(const std::string& path, const at::Tensor& weight) {
  std::unordered_map<std::string, at::Tensor> weights{{"weight", weight}};
  package(path).load_constants(weights, /*use_inactive=*/true, /*check_full_update=*/true);
  package(path).get_runner()->swap_constant_buffer();
}
"""


WEIGHT = torch.arange(1024.0).reshape(32, 32)


class Product(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(WEIGHT.clone())

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


@pytest.fixture(scope="module")
def product(make_package: MakePackage) -> Path:
    return make_package(Product().to("mtia"), torch.ones(32, 32, device="mtia"))


@pytest.mark.wide
@pytest.mark.slow
def test_weights_are_not_swapped_while_they_are_read(product: Path, run_script: RunScript, tmp_path: Path) -> None:
    script = f"""
        import torch
        from torch.utils.cpp_extension import load_inline
        options = dict(no_implicit_headers=True, extra_cflags=["-O0"])
        package = load_inline("buffers", {BUFFERS!r}, functions=["run", "swap"], **options)
        x = torch.ones(32, 32, device="mtia")
        weights = [torch.full((32, 32), float(value), device="mtia") for value in range(9)]
        stream = torch.Stream("mtia")
        stream.wait_stream(torch.accelerator.current_stream())
        results = []
        for weight in weights:
            package.swap({str(product)!r}, weight)
            with stream:
                results.append(package.run({str(product)!r}, x))
        torch.accelerator.synchronize()
        assert [result[0, 0].item() for result in results] == [32.0 * value for value in range(9)]
    """
    run_script(script, timeout=600, TORCH_MTIA_DELAY="3", TORCH_EXTENSIONS_DIR=str(tmp_path)).output()


@pytest.mark.wide
def test_weights_that_do_not_fit_are_an_out_of_memory_error(product: Path) -> None:
    model = load(product)
    other = {"weight": (WEIGHT * 2).to("mtia")}
    torch.accelerator.empty_cache()
    taken: list[Tensor] = []
    total = torch.accelerator.get_memory_info()[1]
    torch_mtia.memory.set_per_process_memory_fraction(torch.accelerator.memory_reserved() / total)
    try:
        with pytest.raises(torch.OutOfMemoryError):
            take_all(taken)
        with pytest.raises(torch.OutOfMemoryError):
            model.loader.load_constants(other, True, True)
    finally:
        taken.clear()
        torch_mtia.memory.set_per_process_memory_fraction(1.0)
    model.loader.load_constants(other, True, True)
    ones = torch.ones(32, 32)
    assert torch.equal(model(ones.to("mtia")).cpu(), ones @ WEIGHT)


def test_constants_that_the_user_manages_are_not_copied(classifier: Path) -> None:
    model = load(classifier)
    weights = weights_of(Classifier())
    model.load_constants(weights, check_full_update=True, user_managed=True)
    for weight in weights.values():
        weight.zero_()
    assert torch.equal(model(inputs(3)).cpu(), torch.full((3, 10), 0.1))


def test_constants_that_the_user_manages_may_be_views(classifier: Path) -> None:
    model = load(classifier)
    larger = {
        name: torch.cat([torch.zeros(5), weight.flatten()]) for name, weight in weights_of(Classifier(), "cpu").items()
    }
    views = {name: larger[name].to("mtia")[5:].view(weight.shape) for name, weight in Classifier().state_dict().items()}
    model.load_constants(views, check_full_update=True, user_managed=True)
    torch.testing.assert_close(model(inputs(3)).cpu(), expected(3))


def test_constants_of_another_dtype_or_within_something_larger_are_refused(classifier: Path) -> None:
    model, weights = load(classifier), weights_of(Classifier())
    with pytest.raises(RuntimeError, match="of the package is Float, and not Double"):
        model.load_constants({name: weight.double() for name, weight in weights.items()}, check_full_update=True)
    larger = {name: torch.cat([weight, weight])[: len(weight)] for name, weight in weights.items()}
    with pytest.raises(RuntimeError, match="give the whole of it, and no view of something larger"):
        model.load_constants(larger, check_full_update=True)
    torch.testing.assert_close(model(inputs(3)).cpu(), expected(3))


@pytest.mark.wide
def test_weights_may_come_after_loading(without_weights: Path) -> None:
    model = load(without_weights)
    model.load_constants(weights_of(Classifier()), check_full_update=True)
    torch.testing.assert_close(model(inputs(2)).cpu(), expected(2))


def test_weights_come_to_the_device_it_is_loaded_for(without_weights: Path, run_script: RunScript) -> None:
    script = f"""
        import sys
        sys.path.append({str(EXAMPLE)!r})
        import torch
        from make_package import Classifier
        model = torch._inductor.aoti_load_package({str(without_weights)!r}, device_index=1)
        network, x = Classifier(), torch.ones(2, 16)
        weights = {{name: weight.to("mtia:1") for name, weight in network.state_dict().items()}}
        for use_inactive in (False, True):
            model.loader.load_constants(weights, use_inactive, True)
        torch.testing.assert_close(model(x.to("mtia:1")).cpu(), network(x))
        assert torch.accelerator.memory_allocated(0) == 0
    """
    run_script(script, TORCH_MTIA_DEVICES="2").output()


@pytest.mark.wide
def test_weights_of_another_device_are_waited_for(without_weights: Path, run_script: RunScript) -> None:
    """With delays, they are not there yet when they are given."""
    script = f"""
        import sys
        sys.path.append({str(EXAMPLE)!r})
        import torch
        from make_package import Classifier
        model = torch._inductor.aoti_load_package({str(without_weights)!r}, device_index=1)
        network, x = Classifier(), torch.ones(2, 16)
        for _ in range(5):
            for weight in network.parameters():
                weight.data.mul_(0.5)
            weights = {{name: weight.to("mtia:0") for name, weight in network.state_dict().items()}}
            for weight in weights.values():
                weight.mul_(3).sub_(1)
            model.load_constants(weights, check_full_update=True)
            result = model(x.to("mtia:1")).cpu()
            expected = Classifier()
            expected.load_state_dict(weights)
            torch.testing.assert_close(result, expected(x))
    """
    run_script(script, TORCH_MTIA_DEVICES="2", TORCH_MTIA_DELAY="3").output()


@pytest.mark.wide
def test_the_caching_allocator_may_be_asked_for(make_package: MakePackage) -> None:
    path = make_package(Classifier().to("mtia"), inputs(2), **{"aot_inductor.weight_use_caching_allocator": True})
    torch.testing.assert_close(load(path)(inputs(2)).cpu(), expected(2))


class Folds(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.arange(64.0).reshape(8, 8))

    def forward(self, x: Tensor) -> Tensor:
        return x @ (self.weight.t() * 2 + 1)


@pytest.fixture(scope="module")
def folding(make_package: MakePackage) -> Path:
    options = {"aot_inductor.use_runtime_constant_folding": True}
    return make_package(Folds().to("mtia"), torch.ones(2, 8, device="mtia"), **options)


@pytest.mark.wide
def test_constants_are_folded(folding: Path) -> None:
    model, x = load(folding), torch.ones(2, 8, device="mtia")
    torch.testing.assert_close(model(x).cpu(), Folds()(torch.ones(2, 8)))
    model.load_constants({"weight": torch.ones(8, 8, device="mtia")}, check_full_update=True)
    assert torch.equal(model(x).cpu(), torch.full((2, 8), 24.0))


def test_constants_that_cannot_be_folded_are_folded_by_the_next_run(folding: Path) -> None:
    model, x = load(folding), torch.ones(2, 8, device="mtia")
    torch.accelerator.empty_cache()
    total = torch.accelerator.get_memory_info()[1]
    torch_mtia.memory.set_per_process_memory_fraction(torch.accelerator.memory_reserved() / total)
    taken: list[Tensor] = []
    try:
        with pytest.raises(torch.OutOfMemoryError):
            take_all(taken)
        with pytest.raises(torch.OutOfMemoryError):
            model(x)
    finally:
        taken.clear()
        torch_mtia.memory.set_per_process_memory_fraction(1.0)
    torch.testing.assert_close(model(x).cpu(), Folds()(torch.ones(2, 8)))


@pytest.mark.wide
def test_a_package_that_goes_away_frees_its_memory(classifier: Path) -> None:
    gc.collect()
    before = torch.accelerator.memory_allocated()
    model = load(classifier)
    model(inputs(2)).cpu()
    assert torch.accelerator.memory_allocated() > before
    del model
    for _ in range(3):
        load(classifier)(inputs(2)).cpu()
    gc.collect()
    assert torch.accelerator.memory_allocated() == before
