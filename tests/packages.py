"""What the tests of packages share: making, loading, and the model that most of them take."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._inductor.package.package import load_package

from torch_mtia.backend import device_type

sys.path.append(str(Path(__file__).parents[1] / "examples" / "package_without_python"))

import make_package as example
from make_package import Classifier as Classifier

EXAMPLE = Path(example.__file__).parent
DEVICE = device_type()
"""Also where a copy of the tests, under another name, imports this module: see `make test-privateuse1`."""

Package = Any
MakePackage = Callable[..., Path]


@pytest.fixture(autouse=True, scope="module")
def without_gradients() -> Any:
    with torch.no_grad():
        yield


@pytest.fixture(scope="module")
def make_package(tmp_path_factory: pytest.TempPathFactory) -> MakePackage:
    """Exports and compiles a module; the package's path."""

    def make(module: nn.Module, *inputs: Any, dynamic_shapes: Any = None, strict: bool = False, **options: Any) -> Path:
        program = torch.export.export(module, inputs, dynamic_shapes=dynamic_shapes, strict=strict)
        path = tmp_path_factory.mktemp("package") / "model.pt2"
        made = torch._inductor.aoti_compile_and_package(program, package_path=str(path), inductor_configs=options)
        return Path(made)

    return make


@pytest.fixture(scope="session")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package of the example: one for all modules, each of which has this fixture."""
    path = tmp_path_factory.getbasetemp() / "classifier.pt2"
    if not path.exists():
        example.main(str(path), DEVICE)
    return path


@pytest.fixture(scope="module")
def without_weights(make_package: MakePackage) -> Path:
    options = {"aot_inductor.package_constants_in_so": False}
    return make_package(Classifier().to(DEVICE), inputs(2), **options)


@pytest.fixture(scope="module")
def embedded(make_package: MakePackage) -> Path:
    """A package whose kernels are part of the library."""
    return make_package(Classifier().to(DEVICE), inputs(2), **{"aot_inductor.embed_kernel_binary": True})


def weights_of(network: nn.Module, device: str = DEVICE) -> dict[str, Tensor]:
    return {name: weight.to(device) for name, weight in network.state_dict().items()}


def load(path: Path, **options: Any) -> Package:
    return load_package(str(path), **options)


def inputs(rows: int, device: str = DEVICE) -> Tensor:
    return torch.linspace(-1, 1, rows * 16).reshape(rows, 16).to(device)


def expected(rows: int) -> Tensor:
    result: Tensor = Classifier()(inputs(rows, "cpu"))
    return result


def take_all(taken: list[Tensor]) -> None:
    while True:
        taken.append(torch.empty(128, device=DEVICE))
