"""What make wheels puts into dist/, installed as users do: into empty environments, away from the sources.

make test-wheels makes them first. Each test takes minutes: it installs PyTorch, and one compiles the sources.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from dataclasses import dataclass
from email import message_from_string
from pathlib import Path

import pytest
import torch
from packaging.requirements import Requirement

from torch_mtia import _versions

ROOT = Path(__file__).parents[1]
MINOR = _versions.minor(torch.__version__)
TORCH = torch.__version__.partition("+")[0]
SCRIPTS = ("vector_add", "softmax", "matmul")  # of examples/triton_*.py

pytestmark = [pytest.mark.wide, pytest.mark.slow]


def made(pattern: str) -> Path:
    found = sorted((ROOT / "dist").glob(pattern))
    if not found:
        pytest.skip(f"no {pattern} in dist/: make wheels")
    return found[-1]


@pytest.fixture(scope="module")
def wheel() -> Path:
    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    return made(f"torch_mtia-{_versions.__version__}+torch{MINOR}-{python}-{python}-*.whl")


@pytest.fixture(scope="module")
def sources() -> Path:
    return made(f"torch_mtia-{_versions.__version__}.tar.gz")


@dataclass
class Environment:
    """A virtual environment, and a folder to work in that has nothing of this project."""

    folder: Path
    compiler: bool = True

    def run(self, *command: str, expect: int = 0, **settings: str) -> str:
        """What the command of the environment prints; it ends with the status `expect`."""
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("TORCH_", "PYTHON", "PIP_TARGET", "VIRTUAL_ENV"))
        }
        path = [str(self.folder / "bin"), os.environ["PATH"] if self.compiler else str(self._without_compiler())]
        finished = subprocess.run(
            [str(self.folder / "bin" / command[0]), *command[1:]],
            cwd=self.folder,
            env=inherited | {"PATH": os.pathsep.join(path)} | settings,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=3000,
        )
        assert finished.returncode == expect, finished.stdout
        return finished.stdout

    def _without_compiler(self) -> Path:
        """A folder with what a machine has that has no compiler."""
        tools = self.folder / "tools"
        if not tools.exists():
            tools.mkdir()
            for name in ("sh", "uname", "ldconfig", "lscpu", "cat"):
                if found := shutil.which(name):
                    (tools / name).symlink_to(found)
        return tools

    def install(self, *requirements: str) -> str:
        return self.run("python", "-m", "pip", "install", "--disable-pip-version-check", *requirements)

    def python(self, script: str, expect: int = 0, **settings: str) -> str:
        file = self.folder / "script.py"  # a file, for Triton
        file.write_text(script)
        return self.run("python", str(file), expect=expect, **settings)


def empty(folder: Path, *, compiler: bool = True) -> Environment:
    venv.create(folder, with_pip=True)
    return Environment(folder, compiler)


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """The wheel and its extras, as the README says, where there is no compiler."""
    environment = empty(tmp_path_factory.mktemp("wheel") / "env", compiler=False)
    environment.install("--find-links", str(wheel.parent), "torch_mtia[triton]", f"torch=={MINOR}.*", "numpy")
    assert f"{_versions.__version__}+torch{MINOR}" in environment.run("python", "-m", "pip", "show", "torch_mtia")
    return environment


def readme_code(language: str) -> list[str]:
    """The blocks of the README in a language; "" for what is printed."""
    text = (ROOT / "README.md").read_text()
    return [
        code for name, code in re.findall(r"^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE) if name == language
    ]


def test_the_wheel_is_for_one_pytorch_and_has_what_users_need(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata = message_from_string(
            archive.read(next(name for name in names if name.endswith("/METADATA"))).decode()
        )
        entry_points = archive.read(next(name for name in names if name.endswith("/entry_points.txt"))).decode()
    assert "manylinux" in wheel.name
    requirements = metadata.get_all("Requires-Dist", [])
    assert f"torch=={MINOR}.*" in requirements
    assert f'{_versions.triton_requirement(TORCH)}; extra == "triton"' in requirements
    assert "mtia = torch_mtia:_autoload" in entry_points
    for needed in (
        "torch_mtia/include/torch_mtia/device/Extension.h",
        "torch_mtia/include/torch_mtia/runtime/mtia_runtime.h",
        "torch_mtia/include/torch_mtia/aoti/c_shim_mtia.h",
        "torch_mtia/include/torch/csrc/inductor/aoti_include/mtia.h",
        "torch_mtia/lib/libmtia_host.so",
        "torch_mtia/lib/libtorch_mtia.so",
        "torch_mtia/py.typed",
        "torch_mtia/_build.py",
        "torch_mtia/conformance/report.html",
        "torch_mtia/conformance/ledgers/mtia.yaml",
        "torch_mtia/new_backend/package-template/ci.sh",
        "mtia/triton/__init__.py",
        "mtia/host_runtime/torch_mtia/dynamic_library.py",
        "mtia/host_runtime/torch_mtia/dynamo_backends.py",
        "mtia/re/re_unittest_lib.py",
        "triton_mtia/python/mtia/eager/mtia_triton_launcher.py",
    ):
        assert needed in names
    for hiding in ("mtia/__init__.py", "triton_mtia/__init__.py"):  # another package of the name
        assert hiding not in names
    assert not [name for name in names if name.startswith(("tests/", "tools/", "benchmarks/", "yaml/"))]
    bundled = [name for name in names if re.search(r"\.so(\.\d+)*$", name) and "torch_mtia" not in name.split("/")[0]]
    assert not bundled


def test_the_sources_are_for_every_pytorch(sources: Path) -> None:
    with tarfile.open(sources) as archive:
        root = sources.name.removesuffix(".tar.gz")
        names = archive.getnames()
        described = archive.extractfile(f"{root}/PKG-INFO")
        assert described is not None
        metadata = message_from_string(described.read().decode())
    assert metadata["Version"] == _versions.__version__
    requirement, *_ = metadata.get_all("Requires-Dist", [])
    assert Requirement(requirement) == Requirement(_versions.torch_requirement())
    for needed in (
        "setup.py",
        "csrc/runtime/mtia_runtime.h",
        "yaml/native_functions.yaml",
        "tools/codegen/generate.py",
    ):
        assert f"{root}/{needed}" in names


def test_the_readmes_code_prints_what_it_says(installed: Environment) -> None:
    code, race = readme_code("python")
    (printed,) = [block for block in readme_code("") if block.startswith("mtia tensor")]
    assert [line.rstrip() for line in installed.python(code).splitlines()] == printed.splitlines()
    (installed.folder / "race.py").write_text(race)
    found = installed.run("python", "-m", "torch_mtia.sanitize", "race.py", expect=1)
    (console,) = readme_code("console")
    assert found.strip() == console.partition("\n")[2].strip()


def test_it_says_what_it_is(installed: Environment) -> None:
    printed = installed.run("python", "-m", "torch_mtia")
    assert f"{installed.folder}" in printed
    assert re.search("works +Triton kernels, torch.compile", printed)
    assert "no C++ compiler" in printed


@pytest.mark.parametrize("name", SCRIPTS)
def test_triton_needs_no_compiler(installed: Environment, name: str) -> None:
    shutil.copy(ROOT / "examples" / f"triton_{name}.py", installed.folder)
    assert installed.run("python", f"triton_{name}.py")


def test_compile_needs_no_compiler(installed: Environment) -> None:
    script = """
import torch

def step(x, weight):
    return (torch.nn.functional.gelu(x @ weight)).softmax(-1).sum()

x, weight = (torch.randn(64, 64, device="mtia", requires_grad=True) for _ in range(2))
expected = step(x, weight)
compiled = torch.compile(step)(x, weight)
compiled.backward()
torch.testing.assert_close(compiled, expected)
print("compiled", tuple(x.grad.shape))
"""
    assert installed.python(script) == "compiled (64, 64)\n"


def test_another_package_named_mtia_is_not_hidden(installed: Environment, tmp_path: Path) -> None:
    (tmp_path / "mtia" / "host_runtime").mkdir(parents=True)
    (tmp_path / "mtia" / "theirs.py").write_text("word = 'theirs'")
    (tmp_path / "mtia" / "host_runtime" / "more.py").write_text("word = 'more'")
    script = (
        "import mtia.theirs, mtia.host_runtime.more, mtia.triton; print(mtia.theirs.word, mtia.host_runtime.more.word)"
    )
    assert installed.python(script, PYTHONPATH=str(tmp_path)) == "theirs more\n"


def test_another_pytorch_is_refused_in_one_line(installed: Environment, tmp_path: Path) -> None:
    """PyTorch 2.99 here is a file; what is looked at is its version."""
    (tmp_path / "torch.py").write_text(f"__version__ = '{_versions.SUPPORTED_TORCH[-1][0]}.99.0'")
    settings = {"PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}  # the file changes within a second
    printed = installed.python("import torch_mtia; torch_mtia._load()", 1, **settings)
    last = printed.strip().splitlines()[-1]
    assert last.startswith("ImportError: torch_mtia")
    assert "pip install" in last
    other = next((f"{a}.{b}" for a, b in _versions.SUPPORTED_TORCH if f"{a}.{b}" != MINOR))
    (tmp_path / "torch.py").write_text(f"__version__ = '{other}.0'")
    printed = installed.python("import torch_mtia; torch_mtia._load()", 1, **settings)
    last = printed.strip().splitlines()[-1]
    assert f"was built for PyTorch {MINOR}, and this is PyTorch {other}.0" in last
    assert f"whose version ends in +torch{other}" in last


def test_the_suite_alone_tests_a_device(tmp_path: Path) -> None:
    environment = empty(tmp_path / "env", compiler=False)
    environment.install(str(made(f"torch_mtia_conformance-{_versions.__version__}-*.whl")), f"torch=={TORCH}")
    assert "torch_mtia" not in environment.python("import sys, torch; print(*sys.modules)").split()
    command = ("-m", "torch_mtia.conformance", "--device", "cpu", "--suite", "tensor", "--test", "tensor/creation/*")
    assert re.search(r"^tensor +[1-9]", environment.run("python", *command), re.MULTILINE)


@pytest.fixture(scope="module")
def with_compiler(installed: Environment) -> Environment:
    environment = Environment(installed.folder)
    environment.install("setuptools>=77", "wheel", "ninja", "pyyaml", "pytest")
    return environment


def test_an_extension_is_built_on_the_wheel(with_compiler: Environment) -> None:
    shutil.copytree(ROOT / "examples" / "custom_operator", with_compiler.folder / "custom_operator")
    built = str(with_compiler.folder / "extensions")
    assert "axpy" in with_compiler.run("python", "custom_operator/axpy.py", TORCH_EXTENSIONS_DIR=built)


def test_a_backend_is_made_on_the_wheel(with_compiler: Environment) -> None:
    with_compiler.run("python", "-m", "torch_mtia.new_backend", "acme")
    with_compiler.install("--no-build-isolation", "./torch_acme")
    try:
        script = """
import torch

x = torch.ones(3, device="acme", requires_grad=True)
(x * x).sum().backward()
print(x.grad)
"""
        assert with_compiler.python(script) == "tensor([2., 2., 2.], device='acme:0')\n"
    finally:
        with_compiler.run("python", "-m", "pip", "uninstall", "-y", "torch_acme")


def test_the_sources_are_built_for_the_pytorch_that_is_installed(sources: Path, tmp_path: Path) -> None:
    environment = empty(tmp_path / "env")
    refused = environment.run("python", "-m", "pip", "install", "--no-deps", str(sources), expect=1)
    assert "torch_mtia is built for the PyTorch that is installed, and there is none" in refused
    environment.install(f"torch=={TORCH}", "numpy")
    environment.install(f"torch_mtia[triton] @ file://{sources}")
    (code, _) = readme_code("python")
    assert environment.python(code).startswith("mtia tensor")
    assert MINOR in environment.python("from importlib.metadata import requires; print(requires('torch_mtia'))")
