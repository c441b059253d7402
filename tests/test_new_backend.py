"""What `python -m torch_mtia.new_backend` writes builds, passes its tests and a first part of the conformance suite.

The commands are those of docs/start_backend.md and docs/vendor_guide.md: one run of all of them serves the tests here.
"""

from __future__ import annotations

import os
import platform
import re
import shlex
import shutil
import subprocess
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
import yaml

from torch_mtia import new_backend
from torch_mtia.conformance.__main__ import parser
from torch_mtia.conformance.ledger import FOLDER, Ledger
from torch_mtia.new_backend.__main__ import main
from torch_mtia.registration import generate_registration

DOCS = Path(__file__).parent.parent / "docs"
START = DOCS / "start_backend.md"
GUIDE = DOCS / "vendor_guide.md"
SEPARATOR = "=== end of command ==="


def commands() -> list[str]:
    """Blocks of them: of the first page those that need the package, and the guide's, whose device has another name."""
    blocks = re.findall(r"((?:<!-- [^\n]* -->\n)?```console\n.*?)```", START.read_text(), flags=re.DOTALL)
    first = ["\n".join(re.findall(r"^\$ (.*)", block, re.MULTILINE)) for block in blocks if "new_backend" in block]
    assert len(first) == 3
    return first + re.findall(r"```sh\n(.*?)```", GUIDE.read_text().replace("acme", "zeta"), flags=re.DOTALL)


@pytest.fixture(scope="module")
def followed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """The folder in which the pages were followed, and what each block of commands has printed.

    The package is installed into a folder of its own, not into the environment of the tests.
    """
    folder = tmp_path_factory.mktemp("vendor")
    site = folder / "site"
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("TORCH_MTIA_")}
    environment = inherited | {
        "PIP_TARGET": str(site),
        "PIP_NO_INDEX": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PYTHONPATH": str(site),
    }
    script = "\n".join(["set -e", *(f"{block}\necho '{SEPARATOR}'" for block in commands())])
    finished = subprocess.run(
        ["bash", "-c", script],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=900,
    )
    assert finished.returncode == 0, finished.stdout
    return folder / "torch_zeta", finished.stdout.split(SEPARATOR)


def printed(followed: tuple[Path, list[str]], command: str) -> str:
    """What the block with that command has printed."""
    (number,) = (number for number, block in enumerate(commands()) if command in block)
    return followed[1][number]


@pytest.mark.slow
class TestTheGuide:
    def test_writes_all_files_that_it_names(self, followed: tuple[Path, list[str]]) -> None:
        package, _ = followed
        section = GUIDE.read_text().replace("acme", "zeta").partition("## The driver")[0]
        named = re.findall(r"^\| `([^`]+)`", section, flags=re.MULTILINE)
        assert len(named) == 10
        assert [name for name in named if not (package.parent / name).is_file()] == []

    def test_own_tests_pass(self, followed: tuple[Path, list[str]]) -> None:
        assert re.search(r"= 6 passed", printed(followed, "ci.sh"))

    def test_the_driver_keeps_the_contract(self, followed: tuple[Path, list[str]]) -> None:
        counts = re.findall(r"^driver\w* +(.*)$", printed(followed, "ci.sh"), flags=re.MULTILINE)
        rows = [tuple(map(int, count.split())) for count in counts]
        assert [passed > 10 for passed, *_ in rows] == [True, True, False]  # the driver has no graphs
        for _, expected, _, _, failed, unexpectedly_passed in rows:
            assert (expected, failed, unexpectedly_passed) == (0, 0, 0)

    def test_first_part_of_the_conformance_suite_passes(self, followed: tuple[Path, list[str]]) -> None:
        package, _ = followed
        results = ElementTree.parse(package / "build" / "conformance.xml").getroot()
        tests = list(results.iter("testcase"))
        assert not list(results.iter("failure"))
        chosen = [test for test in tests if "allocator" not in str(test.attrib)]
        assert (len(chosen), [test for test in chosen if test.find("skipped") is not None]) == (10, [])
        assert len(tests) > len(chosen)
        assert "zeta" in (package / "build" / "conformance.html").read_text()

    def test_import_torch_loads_the_device(self, followed: tuple[Path, list[str]]) -> None:
        assert printed(followed, "requires_grad") == "\ntensor([2., 2., 2.], device='zeta:0')\n"

    def test_suite_of_the_device_passes(self, followed: tuple[Path, list[str]]) -> None:
        output = printed(followed, "--suite device")
        _, passed, _, _, _, failed, unexpectedly_passed = output.splitlines()[-1].split()
        assert int(passed) > 20
        assert (failed, unexpectedly_passed) == ("0", "0")


@pytest.mark.in_tree("acme, the name that is generated, is a device type then")
def test_generated_ledger_is_valid(tmp_path: Path) -> None:
    new_backend.write("acme", tmp_path / "acme")
    known = "operators/bits/H/complex32"
    ours = Ledger(FOLDER / "privateuse1.yaml").find(known)
    assert Ledger(tmp_path / "acme" / "ledger.yaml").find(known) == ours is not None


@pytest.mark.in_tree("acme, the name that is generated, is a device type then")
def test_nothing_of_the_template_is_left(tmp_path: Path) -> None:
    for path in new_backend.write("acme", tmp_path / "acme"):
        assert "NAME" not in str(path.relative_to(tmp_path))
        assert not re.search("@[A-Z]+@", path.read_text())
    workflow = yaml.safe_load((tmp_path / "acme/.github/workflows/conformance.yml").read_text())
    versions = [step["with"]["python-version"] for job in workflow["jobs"].values() for step in job["steps"][1:2]]
    assert versions == [".".join(platform.python_version_tuple()[:2])] * 3


# What the services put into the commands, and the jobs' commands.
WORDS = {
    "${{ matrix.shard }}": "3",
    "${{ strategy.job-total }}": "8",
    "$CI_NODE_INDEX": "3",
    "$CI_NODE_TOTAL": "8",
}
SERVICES = {
    ".github/workflows/conformance.yml": lambda text: [
        step["run"] for job in yaml.safe_load(text)["jobs"].values() for step in job["steps"] if "run" in step
    ],
    ".gitlab-ci.yml": lambda text: [
        command for job in yaml.safe_load(text).values() if "script" in job for command in job["script"]
    ],
}


@pytest.mark.in_tree("acme, the name that is generated, is a device type then")
@pytest.mark.parametrize("path", SERVICES)
def test_commands_for_services_are_those_of_the_suite(path: str, tmp_path: Path) -> None:
    written = new_backend.write("acme", tmp_path / "acme")
    assert tmp_path / "acme" / path in written
    commands = SERVICES[path]((tmp_path / "acme" / path).read_text())
    assert "./ci.sh" in commands
    assert not [command for command in commands if "pip install" in command and "torch_mtia" in command]  # install.sh
    for word, value in WORDS.items():
        commands = [command.replace(word, value) for command in commands]
    assert "$" not in "".join(commands)
    start = ["python", "-m", "torch_mtia.conformance"]
    lines = [shlex.split(command) for command in commands]
    shard, merge = (parser().parse_args(line[3:]) for line in lines if line[:3] == start)
    assert (shard.device, shard.shard, shard.ledger) == ("acme", (2, 8), Path("ledger.yaml"))
    assert shard.json == Path("shard-3.json")
    assert merge.merge == [Path("shard-*.json")]
    assert (merge.junit, merge.report) == (Path("conformance.xml"), Path("conformance.html"))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Acme", "lowercase letters"),
        ("a-b", "lowercase letters"),
        ("1a", "lowercase letters"),
        ("", "lowercase letters"),
        ("../a", "lowercase letters"),
        ("class", "keyword"),
        ("cuda", "device type"),
        ("mtia", "device type"),
        ("privateuseone", "device type"),
    ],
)
@pytest.mark.in_tree("another name is a device type, too")
def test_bad_name(name: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--output", str(tmp_path / "package")]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.out == ""
    assert not (tmp_path / "package").exists()


def test_existing_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["zebra", "--output", str(tmp_path)]) == 2
    assert f"{tmp_path} exists" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("- func: nonsense(Tensor self) -> Tensor\n  dispatch: {PrivateUse1: f}", "no such operator"),
        (
            "- func: _int_mm(Tensor self) -> Tensor\n  dispatch: {PrivateUse1: f}",
            "the signature is _int_mm(Tensor",
        ),
        ("- func: _int_mm(Tensor self, Tensor mat2) -> Tensor\n  dispatch: {CUDA: f}", "under the key PrivateUse1"),
        ("- func: _int_mm(Tensor self, Tensor mat2) -> Tensor", "under the key PrivateUse1"),
    ],
)
def test_mistakes_in_the_overlay_are_named(row: str, message: str, tmp_path: Path) -> None:
    overlay = tmp_path / "native_functions.yaml"
    overlay.write_text(f"# a comment\n{row}\n")
    with pytest.raises(ValueError, match=re.escape(message)) as raised:
        generate_registration(overlay, tmp_path / "generated")
    assert f"{overlay}:2" in str(raised.value)


def test_compiled_files_of_the_template_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """pip leaves them where it installs the package."""
    template = shutil.copytree(new_backend.TEMPLATE, tmp_path / "template")
    (template / "tests" / "__pycache__").mkdir(exist_ok=True)
    (template / "tests" / "__pycache__" / "test.pyc").write_bytes(b"\xa7\r\r\n")
    monkeypatch.setattr(new_backend, "TEMPLATE", template)
    written = new_backend.write("vendor", tmp_path / "made")
    assert tmp_path / "made" / "tests" / "test_vendor.py" in written
    assert not list((tmp_path / "made").rglob("__pycache__"))
