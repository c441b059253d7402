"""What is prepared before a package is imported, once, whichever of its modules comes first."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from torch_mtia import import_hooks, torch_version, upstream_gates

if TYPE_CHECKING:
    from tests.conftest import RunScript


@pytest.fixture
def forked() -> bool:
    return False


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Packages `first` and `second`, with a module `part` each, that are not imported yet."""
    for package in ("first", "second"):
        (tmp_path / package).mkdir()
        for name in ("__init__", "part"):
            (tmp_path / package / f"{name}.py").write_text("import sys\nprepared = list(sys.prepared)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(sys, "prepared", [], raising=False)
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] in ("first", "second")]:
        del sys.modules[name]
    for name in ("first", "second", "first.part", "second.part"):
        import_hooks._finder.preparations.pop(name, None)


def prepare() -> None:
    sys.prepared.append("prepared")  # type: ignore[attr-defined]


@pytest.mark.usefixtures("packages")
@pytest.mark.parametrize("module", ["first", "first.part", "second.part"])
def test_it_is_prepared_before_the_first_module_of_a_package(module: str) -> None:
    import_hooks.before_import(("first", "second"), prepare)
    assert sys.prepared == []  # type: ignore[attr-defined]
    assert importlib.import_module(module).prepared == ["prepared"]
    for other in ("first.part", "second.part"):
        assert importlib.import_module(other).prepared == ["prepared"]


@pytest.mark.usefixtures("packages")
def test_another_module_of_a_package_prepares_nothing() -> None:
    import_hooks.before_import(("first.part",), prepare)
    assert importlib.import_module("first").prepared == []
    assert importlib.import_module("second.part").prepared == []
    assert importlib.import_module("first.part").prepared == ["prepared"]


@pytest.mark.usefixtures("packages")
def test_it_is_prepared_at_once_for_what_is_imported() -> None:
    importlib.import_module("second")
    import_hooks.before_import(("first", "second"), prepare)
    import_hooks.before_import((), prepare)
    assert sys.prepared == ["prepared"] * 2  # type: ignore[attr-defined]
    assert importlib.import_module("first").prepared == ["prepared"] * 2


@pytest.mark.in_tree("another name needs rows of its own")
def test_import_torch_imports_what_its_own_modules_need(run_script: RunScript) -> None:
    """Tables of replacements in other modules, and what the package offers beside the device, come with their use."""
    script = "import sys, torch; print(*sorted(name for name in sys.modules if name.startswith('torch_mtia.')))"
    imported = run_script(script).output().split()
    assert [name for name in imported if name.endswith("table")] == ["torch_mtia.upstream_gates.table"]
    assert not {"torch_mtia.fallback", "torch_mtia.graphs", "torch_mtia.memory", "torch_mtia.streams"} & set(imported)


@pytest.mark.parametrize("table", [table for table, packages in upstream_gates.TABLES.items() if packages])
def test_a_table_is_imported_before_the_modules_that_its_rows_are_about(table: str) -> None:
    packages = upstream_gates.TABLES[table]
    late = [
        name
        for row in upstream_gates._rows_of(table)
        for name in ((row.filled_by,) if row.filled_by else row.modules)
        if not any(f"{name}.".startswith(f"{package}.") for package in packages)
    ]
    # A class that programs use through a module of its own.
    assert {name for name in late if name != "torch._C._distributed_c10d"} == set()


def test_the_first_table_is_about_what_import_torch_imports(run_script: RunScript) -> None:
    script = "import sys, torch; print(*sys.modules)"
    imported = run_script(script, TORCH_DEVICE_BACKEND_AUTOLOAD="0").output().split()
    rows = [row for row in upstream_gates._rows_of("upstream_gates.table") if torch_version.TORCH in row.versions]
    assert {row.filled_by or name for row in rows for name in row.modules} <= set(imported)
