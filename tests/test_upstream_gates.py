"""What the package replaces in torch is needed, works, and costs no import."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, MethodType, ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import torch_mtia
from tests import elsewhere, gate_checks
from torch_mtia import backend, import_hooks, torch_version, upstream_gates
from torch_mtia._versions import SUPPORTED_TORCH
from torch_mtia.upstream_gates import Gate, Reason, parallel

if TYPE_CHECKING:
    from tests.conftest import RunScript

pytestmark = pytest.mark.in_tree(
    "whether a gate is needed is asked with the name mtia; test_privateuse1 has the others"
)
GATES = [gate for gate in upstream_gates.GATES if torch_version.TORCH in gate.versions]
PLACES = [(gate, module) for gate in GATES for module in gate.modules]


def skip_without(module: str) -> None:
    """A module of one file that has the name of the package is another's: the benchmarks have some."""
    spec = importlib.util.find_spec(module.partition(".")[0])
    if spec is None or spec.submodule_search_locations is None:
        pytest.skip("there is nothing to replace")


@pytest.mark.parametrize(("gate", "module"), PLACES, ids=lambda value: getattr(value, "name", value))
def test_a_gate_is_applied_and_still_needed(gate: Gate, module: str) -> None:
    skip_without(module)
    importlib.import_module(gate.filled_by or module)
    replaced = upstream_gates.present(gate, importlib.import_module(module))
    original = upstream_gates.originals[module, gate.name]
    assert replaced is not original
    is_needed = gate_checks.is_needed(gate)
    assert is_needed(original), f"{gate.name}: upstream does this itself now; remove the row"
    assert not is_needed(replaced)
    assert not is_needed(as_if_upstream_were(replaced, module))


def test_every_check_is_of_a_row() -> None:
    rows = [*upstream_gates.GATES, *upstream_gates.GATES_OF_OTHER_NAMES]
    names = {gate.name for gate in rows} | {f"{gate.modules[0]}:{gate.name}" for gate in rows}
    assert not gate_checks.CHECKS.keys() - names


def test_a_fault_of_upstreams_has_a_report() -> None:
    """Which docs/upstream has, for whoever sends it."""
    reports = Path(__file__).parents[1] / "docs" / "upstream"
    for gate in upstream_gates.GATES:
        assert (gate.reason is Reason.FAULT) == bool(gate.issue), gate.name
        assert not gate.issue or (reports / gate.issue).is_file(), gate.name


def as_if_upstream_were(replaced: Any, module: str) -> Any:
    """Does the same, but is of another module and has no source: a check may only ask what it does."""
    if not inspect.isroutine(replaced) or not callable(replaced):
        return replaced
    function = eval("lambda *args, **kwargs: replaced(*args, **kwargs)", {"replaced": replaced})
    function.__module__ = module
    return function


# What PyTorch counts, the current device of a process that compiles, which its own device interfaces keep there, and
# the storages that processes share.
STATE_THAT_OTHERS_KEEP = ("counters[", "caching_worker_current_devices", "shared_cache")


def imported_from_upstream(tree: ast.AST) -> set[str]:
    modules = {
        (alias.asname or alias.name.partition(".")[0]): alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    } | {
        (alias.asname or alias.name): str(node.module)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    return {name for name, module in modules.items() if module.partition(".")[0] in ("torch", "triton")}


def changed(tree: ast.AST) -> Iterator[ast.expr]:
    """What a module assigns to, deletes or passes to setattr: objects with an attribute, or an entry, that changes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
            yield node.value
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("setattr", "delattr"):
            yield node.args[0]


def test_nothing_but_gates_assigns_to_anything_in_torch_or_triton() -> None:
    package = Path(upstream_gates.__file__).parents[1]
    found = []
    for path in package.rglob("*.py"):
        tree = ast.parse(path.read_text())
        upstream = imported_from_upstream(tree)
        for expression in changed(tree):
            root = next(node for node in ast.walk(expression) if isinstance(node, ast.Name | ast.Constant | ast.Call))
            is_kept_for_others = any(name in ast.unparse(expression) for name in STATE_THAT_OTHERS_KEEP)
            if isinstance(root, ast.Name) and root.id in upstream and not is_kept_for_others:
                found.append(f"{path.relative_to(package)}:{expression.lineno}")
    # The sanitizer puts back what it changes when it stops. Where the package does not load, no gate is there either.
    assert not [place for place in found if not place.startswith(("upstream_gates/", "sanitizer/", "unavailable.py"))]


def test_what_is_registered_in_place_of_upstreams_own_is_needed() -> None:
    """Template heuristics list a tile more than once, for what only a GPU has; what would write C++ says nothing."""
    from torch._inductor.codegen.mtia.device_op_overrides import MTIADeviceOpOverrides

    importlib.import_module(torch_version.TEMPLATE_HEURISTICS)
    from torch_mtia.inductor import template_heuristics

    for _, _, ours in template_heuristics.HEURISTICS:
        for upstream in (each for each in ours.__mro__ if each.__name__.startswith("MTIA")):
            tiles = [(each.block_m, each.block_n, each.block_k) for each in upstream().mm_configs]
            assert len(set(tiles)) < len(tiles), upstream.__name__
    with pytest.raises(NotImplementedError, match=r"^$"):
        MTIADeviceOpOverrides().kernel_driver()


# Other devices --------------------------------------------------------------------------------------------------------

EDITED = [gate for gate in GATES if gate.edits_code]
WRAPPED = [gate for gate in GATES if not gate.edits_code and not gate.adds and not gate.is_of_a_client]


def parts(value: Any) -> Iterator[Any]:
    """The names and constants of code, and what lists in it have; without what tells where it was written."""
    if isinstance(value, CodeType):
        yield from value.co_names
        for constant in value.co_consts:
            yield from parts(constant)
    elif isinstance(value, tuple | frozenset | list):
        for each in value:
            yield from parts(each)
    else:
        yield value


def test_code_is_edited_in_a_few_places_only() -> None:
    assert len([gate for gate in upstream_gates.GATES if gate.edits_code]) <= 2


@pytest.mark.parametrize("gate", EDITED, ids=lambda gate: gate.name)
def test_code_that_is_edited_only_has_longer_lists(gate: Gate) -> None:
    for module in gate.modules:
        skip_without(module)
        importlib.import_module(module)
        original = upstream_gates.originals[module, gate.name]
        replaced = upstream_gates.present(gate, importlib.import_module(module))
        assert replaced.co_code == original.co_code
        assert not list((Counter(parts(original)) - Counter(parts(replaced))).elements())


@pytest.mark.parametrize("gate", WRAPPED, ids=lambda gate: gate.name)
def test_what_concerns_another_device_is_left_to_the_original(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor.virtualized import V

    skip_without(gate.modules[0])
    importlib.import_module(gate.filled_by or gate.modules[0])
    original = upstream_gates.originals[gate.modules[0], gate.name]
    if gate.name in elsewhere.SAME:
        return
    if isinstance(original, dict | list):  # a table, which only grows
        replaced = gate.replace(original)
        assert all(key in replaced for key in original)
        assert isinstance(original, list) or all(replaced[key] == original[key] for key in original)
        return
    given, answer = elsewhere.calls()[gate.name], elsewhere.RETURNS.get(gate.name, elsewhere.ANSWER)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda **_: elsewhere.CUDA)
    arguments, named = ((), given) if isinstance(given, dict) else (given, {})
    seen: list[tuple[Any, ...]] = []

    def stand_in(*args: Any, **kwargs: Any) -> Any:
        seen.append((*args, *kwargs.values()))
        return answer

    is_of_class = isinstance(original, MethodType)
    replaced = gate.replace(original and (MethodType(stand_in, object) if is_of_class else stand_in))
    graph: Any = SimpleNamespace(device_types={"cuda"}, env={}, current_device=elsewhere.CUDA)
    with V.set_graph_handler(graph):
        result = (replaced.__func__ if isinstance(replaced, classmethod | staticmethod) else replaced)(
            *arguments, **named
        )
    if original is None:
        assert result is NotImplemented or result == (arguments[1:], {})
    else:
        assert len(seen) == 1
        assert all(ours is theirs for ours, theirs in zip(seen[0][is_of_class:], arguments[is_of_class:], strict=False))
        assert result is answer or result in (answer, None)


@pytest.mark.parametrize("name", parallel.COPIES)
def test_copies_between_devices_of_cuda_are_left_to_the_original(name: str) -> None:
    seen: list[Any] = []
    with FakeTensorMode():
        tensor = torch.empty(2, device="cuda")
    copy = parallel.copying(parallel.COPIES[name], lambda *arguments: seen.append(arguments))
    copy(tensor, [0])
    assert seen == [(tensor, [0])]


def test_gates_are_for_versions_that_are_supported() -> None:
    assert all(set(gate.versions) <= set(SUPPORTED_TORCH) for gate in upstream_gates.GATES)


@pytest.mark.parametrize("gate", GATES, ids=lambda gate: gate.name)
def test_a_gate_names_all_modules_that_have_the_name(gate: Gate) -> None:
    assert gate.why
    skip_without(gate.modules[0])
    package = gate.modules[0].rpartition(".")[0]
    original = upstream_gates.originals[gate.modules[0], gate.name]
    if isinstance(original, ModuleType):  # what one module sees of another
        return
    missing = object()
    missed = [
        name
        for name, module in sys.modules.items()
        if name.startswith(package) and getattr(module, gate.name, missing) is original
    ]
    assert not missed


@pytest.fixture
def gate_of_a_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    """For the list `devices` of a module `library`, in tmp_path, that is not imported yet."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    yield Gate(
        name="devices",
        modules=("library",),
        reason=Reason.CLIENT,
        why="a test",
        replace=lambda devices: [*devices, "mtia"],
    )
    sys.modules.pop("library", None)
    import_hooks._finder.actions.pop("library", None)
    upstream_gates.originals.pop(("library", "devices"), None)


def test_a_module_that_is_imported_later_gets_its_gate_then(gate_of_a_library: Gate, tmp_path: Path) -> None:
    (tmp_path / "library.py").write_text("devices = ['cuda']\n")
    upstream_gates.apply("2.13.0+cpu", [gate_of_a_library])
    assert "library" not in sys.modules
    module = importlib.import_module("library")
    assert module.devices == ["cuda", "mtia"]
    assert module.__spec__ is not None
    assert module.__file__ == str(tmp_path / "library.py")


def test_a_module_that_imports_torch_first_gets_its_gate_when_it_is_complete(
    gate_of_a_library: Gate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "library.py").write_text("import stand_in_for_torch\ndevices = ['cuda']\n")
    (tmp_path / "stand_in_for_torch.py").write_text("import sys\nsys.load_the_device()\n")
    load = lambda: upstream_gates.apply("2.13.0+cpu", [gate_of_a_library])  # noqa: E731
    monkeypatch.setattr(sys, "load_the_device", load, raising=False)
    assert importlib.import_module("library").devices == ["cuda", "mtia"]
    del sys.modules["stand_in_for_torch"]


def test_an_import_that_fails_gives_its_own_error(
    gate_of_a_library: Gate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "library.py").write_text("import sys\nsys.load_the_device()\nraise ValueError('its own')\n")
    load = lambda: upstream_gates.apply("2.13.0+cpu", [gate_of_a_library])  # noqa: E731
    monkeypatch.setattr(sys, "load_the_device", load, raising=False)
    with pytest.raises(ValueError, match="its own"):
        importlib.import_module("library")


@pytest.mark.parametrize("is_imported", [True, False])
def test_a_module_that_is_imported_again_gets_its_gate_again(
    gate_of_a_library: Gate, tmp_path: Path, is_imported: bool
) -> None:
    (tmp_path / "library.py").write_text("devices = ['cuda']\n")
    if is_imported:
        importlib.import_module("library")
    upstream_gates.apply("2.13.0+cpu", [gate_of_a_library])
    module = importlib.import_module("library")
    assert importlib.reload(module).devices == ["cuda", "mtia"]
    del sys.modules["library"]
    assert importlib.import_module("library").devices == ["cuda", "mtia"]


@pytest.mark.parametrize("name", ["devices", "Class.devices"])
def test_a_library_without_the_name_is_left_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("another_version")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    gate = Gate(name, (module.__name__,), Reason.CLIENT, "a test", lambda _: None)
    upstream_gates.apply(torch.__version__, [gate])
    assert not hasattr(module, "devices")
    assert (module.__name__, name) not in upstream_gates.originals


@pytest.fixture
def gates_of_missing_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Gate]]:
    """For names that a module of PyTorch, in tmp_path, no longer has."""
    (tmp_path / "of_pytorch.py").write_text("class Class: ...\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(upstream_gates, "skipped", {})
    monkeypatch.setattr(upstream_gates, "_rows", {})
    yield [
        Gate(name, ("of_pytorch",), Reason.FAULT, f"What {name} is for.", lambda original: original)
        for name in ("gone", "Gone.method", "Class.gone", "gone.__code__")
    ]
    sys.modules.pop("of_pytorch", None)
    import_hooks._finder.actions.pop("of_pytorch", None)


def test_names_that_pytorch_no_longer_has_are_recorded_and_told_of_at_the_first_use(
    gates_of_missing_names: list[Gate], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Upstream's import of the module goes on, also where warnings are errors."""
    later: list[Callable[[], None]] = []
    monkeypatch.setattr(backend.device_module(), "is_initialized", lambda: False)
    monkeypatch.setattr(backend.device_module(), "_lazy_call", later.append)
    upstream_gates.apply(torch.__version__, gates_of_missing_names)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        module = importlib.import_module("of_pytorch")
    assert not hasattr(module, "gone")
    assert [each.name for each in upstream_gates.replacements()] == [gate.name for gate in gates_of_missing_names]
    assert upstream_gates.replacements()[0].skipped == "AttributeError: there is no gone"
    assert not {("of_pytorch", gate.name) for gate in gates_of_missing_names} & upstream_gates.originals.keys()
    (tell,) = later
    with pytest.warns(UserWarning, match="cannot replace gone of of_pytorch and 3 other names.*What gone is for"):
        tell()


def test_names_that_are_missing_once_the_device_is_in_use_are_logged(
    gates_of_missing_names: list[Gate], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(backend.device_module(), "is_initialized", lambda: True)
    upstream_gates.apply(torch.__version__, gates_of_missing_names)
    importlib.import_module("of_pytorch")
    assert "cannot replace gone of of_pytorch, which is not as in" in caplog.text


def test_the_first_use_of_the_device_tells_of_missing_names(run_script: RunScript) -> None:
    script = """
        import torch
        from torch_mtia import upstream_gates
        from torch_mtia.upstream_gates import Gate, Reason
        gate = Gate("gone", ("colorsys",), Reason.FAULT, "Why.", lambda original: original)
        upstream_gates.apply(torch.__version__, [gate])
        import colorsys
        print("imported", flush=True)
        torch.ones(1, device="mtia")
    """
    finished = run_script(script)
    assert finished.output() == "imported\n"
    assert "cannot replace gone of colorsys" in finished.stderr


def test_libraries_that_use_pytorch_can_be_left_alone(run_script: RunScript, tmp_path: Path) -> None:
    (tmp_path / "safetensors.py").write_text("def safe_open(): ...\n")
    script = "import torch, safetensors; print(safetensors.safe_open.__code__.co_filename == safetensors.__file__)"
    assert run_script(script, PYTHONPATH=str(tmp_path), TORCH_MTIA_CLIENTS="0").output() == "True\n"
    assert run_script(script, PYTHONPATH=str(tmp_path)).output() == "False\n"


def test_replacements_are_those_of_modules_that_are_imported() -> None:
    importlib.import_module("torch._inductor.codecache")
    found = {(each.module, each.name): each for each in torch_mtia.replacements()}
    made = found["torch._inductor.codecache", "CacheBase.get_local_cache_path"]
    assert made.reason is Reason.CUDA
    assert made.why
    assert not made.skipped
    assert all(each.module in sys.modules for each in found.values())


def test_another_version_of_pytorch_is_left_alone() -> None:
    gate = Gate("DEVICES", ("torch_mtia.upstream_gates",), Reason.FAULT, "a test", lambda _: None, ((1, 0),))
    upstream_gates.apply(torch.__version__, [gate])
    assert ("torch_mtia.upstream_gates", "DEVICES") not in upstream_gates.originals


def test_applying_imports_nothing(run_script: RunScript) -> None:
    script = """
        import sys
        import torch
        before = set(sys.modules)
        import torch_mtia
        print(sorted(name for name in set(sys.modules) - before if name.startswith("torch.")))
    """
    assert run_script(script, TORCH_DEVICE_BACKEND_AUTOLOAD="0").output() == "[]\n"
