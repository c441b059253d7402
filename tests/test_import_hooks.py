"""What is prepared before a package is imported, once, whichever of its modules comes first."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from torch_mtia import import_hooks


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
