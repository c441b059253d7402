"""The files that people and hosting services look for agree with the tree."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from torch_mtia._versions import SUPPORTED_TORCH, TRITON_OF, __version__

pytestmark = pytest.mark.in_tree("the files are of the tree, whatever the device is called")

ROOT = Path(__file__).parent.parent
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PAGES = [*ROOT.glob("*.md"), ROOT / "docs" / "support.md", *ROOT.glob("examples/*.md"), *ROOT.glob(".github/*.md")]
TARGETS = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def jobs(workflow: Path) -> dict[str, dict[str, Any]]:
    described: dict[str, dict[str, Any]] = yaml.safe_load(workflow.read_text())["jobs"]
    return described


def rows(job: dict[str, Any]) -> list[dict[str, str]]:
    """The combinations of a job's matrix that it lists one by one."""
    listed: list[dict[str, str]] = job.get("strategy", {}).get("matrix", {}).get("include", [])
    return listed


def classified() -> list[str]:
    """The versions of Python in the metadata."""
    return re.findall(r'"Programming Language :: Python :: (3\.\d+)"', (ROOT / "pyproject.toml").read_text())


def minors(versions: list[str]) -> set[tuple[int, ...]]:
    return {tuple(map(int, version.split(".")[:2])) for version in versions}


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_run_targets_of_the_makefile(workflow: Path) -> None:
    for name, job in jobs(workflow).items():
        commands = [step["run"] for step in job["steps"] if "run" in step]
        made = [target for command in commands for target in re.findall(r"\bmake ([a-z0-9-]+)", command)]
        if any("make ${{ matrix.target }}" in command for command in commands):
            made += [row["target"] for row in rows(job)]
        assert made, f"{name} runs no target"
        assert set(made) <= TARGETS, name


def test_every_version_of_pytorch_and_of_python_is_tested() -> None:
    tested = rows(jobs(ROOT / ".github" / "workflows" / "test.yml")["test"])
    assert minors([row["torch"] for row in tested]) == set(SUPPORTED_TORCH)
    assert {row["python"] for row in tested} == set(classified())


def test_wheels_are_built_for_every_version_of_pytorch_and_of_python() -> None:
    matrix = jobs(ROOT / ".github" / "workflows" / "wheels.yml")["wheel"]["strategy"]["matrix"]
    assert minors(matrix["torch"]) == set(SUPPORTED_TORCH)
    assert [f"3.{python.removeprefix('3')}" for python in matrix["python"]] == classified()


def test_actions_are_pinned_by_commit() -> None:
    for file in [*WORKFLOWS, *ROOT.glob(".github/actions/*/action.yml")]:
        for action in re.findall(r"uses: (\S+)", file.read_text()):
            assert re.search(r"^\./|@[0-9a-f]{40}$", action), f"{file.name}: {action}"


@pytest.mark.parametrize("file", sorted(ROOT.glob(".github/ISSUE_TEMPLATE/*.yml")), ids=lambda path: path.stem)
def test_forms_of_issues_are_complete(file: Path) -> None:
    form = yaml.safe_load(file.read_text())
    if file.stem != "config":
        assert form["name"]
        assert form["description"]
        identifiers = [field["id"] for field in form["body"]]
        assert len(identifiers) == len(set(identifiers))
        assert all(field["attributes"]["label"] for field in form["body"])


def test_the_version_is_that_of_the_package() -> None:
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == __version__
    assert __version__ in (ROOT / "CHANGELOG.md").read_text()


def test_the_policy_names_the_supported_versions() -> None:
    policy = (ROOT / "docs" / "support.md").read_text()
    for (major, number), triton in TRITON_OF.items():
        assert re.search(rf"\| PyTorch \|.*\b{major}\.{number}\b", policy)
        assert re.search(rf"\| Triton \|.*\b{triton} with (PyTorch )?{major}\.{number}\b", policy)
    first, *_, last = classified()
    assert f"| Python | {first} to {last} with" in policy


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_commands_of_make_exist(page: Path) -> None:
    named = re.findall(r"(?:`|^\$ )make ([a-z0-9-]+)", page.read_text(), re.MULTILINE)
    assert set(named) <= TARGETS


def test_what_git_ignores_is_not_sent_to_docker() -> None:
    sent, ignored = (
        {line.removeprefix("**/").strip("/") for line in (ROOT / name).read_text().splitlines() if line[0] != "#"}
        for name in (".dockerignore", ".gitignore")
    )
    assert sent == ignored | {".git"}


def test_the_index_lists_every_example() -> None:
    folder = ROOT / "examples"
    index = (folder / "README.md").read_text()
    listed = [path.partition("/")[0] for path in re.findall(r"^\| \[[^\]]+\]\(([^)]+)\)", index, re.MULTILINE)]
    programs = [path.name for path in folder.glob("*.py") if 'if __name__ == "__main__"' in path.read_text()]
    folders = [path.parent.name for path in folder.glob("*/*.cpp")]
    assert sorted(listed) == sorted({*programs, *folders})
