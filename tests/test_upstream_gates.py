"""What the package replaces in torch is needed, works, and costs no import."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, MethodType, ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from tests import elsewhere
from torch_mtia import import_hooks, torch_version, upstream_gates
from torch_mtia._versions import SUPPORTED_TORCH
from torch_mtia.upstream_gates import Gate, device_lists

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
    assert gate.is_needed(original), f"{gate.name}: upstream does this itself now; remove the row"
    assert not gate.is_needed(replaced)
    assert not gate.is_needed(as_if_upstream_were(replaced, module))


def as_if_upstream_were(replaced: Any, module: str) -> Any:
    """Does the same, but is of another module and has no source: a check may only ask what it does."""
    if not inspect.isroutine(replaced) or not callable(replaced):
        return replaced
    function = eval("lambda *args, **kwargs: replaced(*args, **kwargs)", {"replaced": replaced})
    function.__module__ = module
    return function


# What PyTorch counts, and the current device of a process that compiles, which its own device interfaces keep there.
STATE_THAT_OTHERS_KEEP = ("counters[", "caching_worker_current_devices")


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

EDITED = [gate for gate in GATES if gate.name.endswith(".__code__")]
WRAPPED = [gate for gate in GATES if gate not in EDITED and not gate.adds and not gate.of_any_version]


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


@pytest.mark.parametrize("gate", EDITED, ids=lambda gate: gate.name)
def test_edited_code_only_grows_or_is_chosen_by_the_arguments(gate: Gate) -> None:
    for module in gate.modules:
        skip_without(module)
        importlib.import_module(module)
        original = upstream_gates.originals[module, gate.name]
        replaced = upstream_gates.present(gate, importlib.import_module(module))
        choices = [each for each in replaced.co_consts if isinstance(each, device_lists._Choice)]
        if choices:
            assert choices[0].original is original
        else:
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


def test_an_edited_function_has_its_signature_and_defaults() -> None:
    def function(a: int, b: int = 2, /, c: int = 3, *rest: int, d: int, e: int = 5, **others: Any) -> tuple[Any, ...]:
        return "theirs", a, b, c, rest, d, e, others

    signature = inspect.signature(function)
    code = function.__code__
    ours = code.replace(co_consts=tuple("ours" if each == "theirs" else each for each in code.co_consts))
    function.__code__ = device_lists._chosen_at_the_call(code, ours, lambda arguments: arguments["others"])
    assert inspect.signature(function) == signature
    assert function(1, d=4) == ("ours", 1, 2, 3, (), 4, 5, {})
    assert function(1, 2, 3, 4, 5, d=6, x=torch.ones(1)) == ("theirs", 1, 2, 3, (4, 5), 6, 5, {"x": torch.ones(1)})
    assert function(1, d=4, x=torch.ones(1, device="mtia"))[0] == "ours"


def test_strings_are_divided_as_upstream_does() -> None:
    """Other packages generate code by Inductor's functions, and pass text."""
    from torch._inductor.codegen.triton import TritonOverrides
    from torch._inductor.ops_handler import MockHandler
    from torch._inductor.virtualized import V

    original = upstream_gates.originals["torch._inductor.codegen.triton", "TritonOverrides.floordiv"]
    with V.set_ops_handler(MockHandler()):
        assert TritonOverrides.floordiv("a", "b") == original("a", "b")


def test_gates_are_for_versions_that_are_supported() -> None:
    assert all(set(gate.versions) <= set(SUPPORTED_TORCH) for gate in upstream_gates.GATES)


@pytest.mark.parametrize("gate", GATES, ids=lambda gate: gate.name)
def test_a_gate_names_all_modules_that_have_the_name(gate: Gate) -> None:
    assert gate.why
    skip_without(gate.modules[0])
    package = gate.modules[0].rpartition(".")[0]
    original = upstream_gates.originals[gate.modules[0], gate.name]
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
        why="a test",
        replace=lambda devices: [*devices, "mtia"],
        is_needed=lambda devices: "mtia" not in devices,
        of_any_version=True,
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
    gate = Gate(name, (module.__name__,), "a test", lambda _: None, lambda _: True, of_any_version=True)
    upstream_gates.apply(torch.__version__, [gate])
    assert not hasattr(module, "devices")
    assert (module.__name__, name) not in upstream_gates.originals


@pytest.mark.parametrize("name", ["gone", "Gone.method", "Class.gone", "gone.__code__"])
def test_a_name_that_pytorch_no_longer_has_is_reported_and_not_added(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Upstream's import of the module goes on, with one warning for all such names of the process."""
    (tmp_path / "of_pytorch.py").write_text("class Class: ...\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(upstream_gates, "skipped", {})
    gates = [
        Gate(each, ("of_pytorch",), "What it is for.", lambda original: original, lambda _: True)
        for each in (name, "gone too")
    ]
    upstream_gates.apply(torch.__version__, gates)
    try:
        with pytest.warns(
            UserWarning, match=rf"cannot replace {re.escape(name)} of of_pytorch.*What it is for"
        ) as seen:
            module = importlib.import_module("of_pytorch")
        assert len(seen) == 1
        assert set(upstream_gates.skipped) == {("of_pytorch", name), ("of_pytorch", "gone too")}
        assert not hasattr(module, "gone")
        assert ("of_pytorch", name) not in upstream_gates.originals
    finally:
        sys.modules.pop("of_pytorch", None)
        import_hooks._finder.actions.pop("of_pytorch", None)


def test_another_version_of_pytorch_is_left_alone() -> None:
    gate = Gate("DEVICES", ("torch_mtia.upstream_gates",), "a test", lambda _: None, lambda _: True, ((1, 0),))
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
