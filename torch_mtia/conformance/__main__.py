"""`python -m torch_mtia.conformance`: the command line."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import fcntl
import importlib.metadata
import json
import os
import platform
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from torch_mtia._versions import __version__
from torch_mtia.conformance import results as r
from torch_mtia.conformance.driver_api import Driver, DriverFailure
from torch_mtia.conformance.ledger import FOLDER, Ledger, LedgerError
from torch_mtia.conformance.probe import probe
from torch_mtia.conformance.report import save_html
from torch_mtia.conformance.results import Run, changes
from torch_mtia.conformance.runner import SUITES_FOLDER, run
from torch_mtia.conformance.settings import RESULTS, Settings, UsageError
from torch_mtia.conformance.upstream import asks_for_inductor
from torch_mtia.conformance.upstream_checkout import Checkout
from torch_mtia.conformance.upstream_run import differences, run_files
from torch_mtia.environment import DEFER, device_type

SUITES = (
    *("device", "accelerator", "allocator", "random", "generators", "tensor", "data", "files", "sparse", "layouts"),
    *("errors", "transforms", "autocast", "determinism", "profiler", "models"),
    *("operators", "autograd", "accumulation", "modules", "optimizers", "compile", "graphs", "triton", "distributed"),
)

DRIVER_SUITE = "driver"  # of a library, not of a device
DRIVER_FILES = ("driver", "driver_work", "driver_graphs")

LONGEST = 1_000_000  # seconds: more than a timer of faulthandler's takes would be an error later

AS_EXPECTED, UNEXPECTED, USAGE, INTERRUPTED = 0, 1, 2, 3


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python -m torch_mtia.conformance",
        description="Tests a PyTorch device against the CPU device, and compares the results with the device's ledger "
        "of expected failures. One of --device, --driver and --merge is required.",
        epilog=f"Exit status: {AS_EXPECTED} if all results are as the ledger says, {UNEXPECTED} if some are not, "
        f"{USAGE} for wrong arguments, a wrong ledger or a device that does not start, {INTERRUPTED} if interrupted "
        "(--resume continues).",
    )
    under_test = made.add_mutually_exclusive_group(required=True)
    under_test.add_argument(
        "--device", help="device type to test: mtia, cpu, cuda, or the name of a PrivateUse1 backend"
    )
    under_test.add_argument(
        "--driver", type=Path, metavar="LIBRARY", help=f"driver library to test, by the suite {DRIVER_SUITE}"
    )
    under_test.add_argument(
        "--merge",
        type=Path,
        nargs="+",
        metavar="SHARD.json",
        help="run nothing; combine what --json wrote for each shard of one run",
    )
    made.add_argument(
        "--import",
        dest="imports",
        action="append",
        default=[],
        metavar="MODULE",
        help="module that registers the device; repeatable",
    )
    made.add_argument(
        "--suite", action="append", default=[], help=f"suite to run; repeatable (default: all of {', '.join(SUITES)})"
    )
    made.add_argument(
        "--test",
        action="append",
        default=[],
        metavar="PATTERN",
        help="run only tests whose ids match, as in operators/*/add/float32; repeatable",
    )
    made.add_argument(
        "--shard", type=_shard, default=(0, 1), metavar="K/N", help="run the K-th of N shards (default: 1/1)"
    )
    made.add_argument(
        "--file",
        action="append",
        default=[],
        type=Path,
        help="file of PyTorch's tests to run; repeatable; without --suite, no suite runs",
    )
    made.add_argument(
        "--upstream",
        nargs="+",
        metavar=("CHECKOUT", "FILE"),
        help="source tree of PyTorch or Triton, whose test files run instead of suites (default: all that are generic);"
        " name a file without its suffix, as in test_torch",
    )
    made.add_argument(
        "--ledger", type=Path, help="expected failures (default: the ledger that the package has for the device)"
    )
    made.add_argument("--folder", type=Path, help="folder for the run's record (default: conformance-DEVICE)")
    made.add_argument(
        "-j",
        "--jobs",
        type=_count,
        default=_cores(),
        help="number of worker processes (default: the usable cores); with 0, tests run in this process, as a debugger "
        "needs, and a device that kills its process ends the run",
    )
    made.add_argument(
        "--time-limit",
        type=_limit,
        default=Settings.time_limit,
        metavar="SECONDS",
        help="limit for one test (default: %(default)g)",
    )
    made.add_argument("--resume", action="store_true", help="continue the run whose record is in the folder")
    made.add_argument("--json", type=Path, metavar="FILE", help="write all results as JSON")
    made.add_argument("--junit", type=Path, metavar="FILE", help="write all results as JUnit XML")
    made.add_argument("--report", type=Path, metavar="FILE", help="write an HTML report")
    made.add_argument("--compare", type=Path, metavar="OLD.json", help="list the changes since the run that wrote it")
    made.add_argument(
        "--update", action="store_true", help="write a ledger that agrees with the results to the folder, as a proposal"
    )
    return made


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of processes")
    return int(text)


def _limit(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds <= LONGEST:
        raise argparse.ArgumentTypeError(f"{text} is not above 0 and at most {LONGEST}")
    return seconds


def _shard(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"([0-9]+)/([0-9]+)", text)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise argparse.ArgumentTypeError(f"{text!r} is not K/N with 1 <= K <= N")
    return int(match[1]) - 1, int(match[2])


def files(suites: Sequence[str], given: Sequence[Path]) -> list[Path]:
    """Returns the test files to run. Raises UsageError for one that is not there."""
    if DRIVER_SUITE in suites:
        raise UsageError(f"--suite {DRIVER_SUITE} is for a library: give it with --driver, in place of --device")
    if unknown := [suite for suite in suites if suite not in SUITES]:
        raise UsageError(f"--suite {unknown[0]}: there is no such suite. There are: {', '.join(SUITES)}")
    if missing := [path for path in given if not path.is_file()]:
        raise UsageError(f"--file {missing[0]}: no such file")
    chosen = suites or (() if given else SUITES)
    return [SUITES_FOLDER / f"{suite}.py" for suite in chosen] + [path.resolve() for path in given]


def driver_suite(arguments: argparse.Namespace) -> tuple[list[Path], dict[str, str]]:
    """Returns the test files for a driver, and what it is called. Raises UsageError for a library that is no driver."""
    if arguments.file or any(suite != DRIVER_SUITE for suite in arguments.suite):
        raise UsageError(f"--driver goes with the suite {DRIVER_SUITE} and no other")
    try:
        table = Driver(str(arguments.driver.resolve())).table
    except (OSError, AttributeError, DriverFailure) as error:
        raise UsageError(f"--driver {arguments.driver}: not a driver: {error}") from error
    name, version = table.name.decode(), table.version.decode()
    described = {
        "device": str(arguments.driver),
        "type": f"driver-{name}",
        "properties": f"{name} {version}",
        "functions": "",
    }
    return [SUITES_FOLDER / f"{file}.py" for file in DRIVER_FILES], described


def environment(probed: dict[str, str]) -> dict[str, str]:
    """Returns what the results depend on."""
    return {
        "device": f"{probed['device']}: {probed['properties']}",
        "torch": importlib.metadata.version("torch"),
        "torch_mtia": __version__,
        "Python": platform.python_version(),
        "system": f"{platform.platform()}, {_cores()} cores",
        "time": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "command": f"python -m torch_mtia.conformance {shlex.join(sys.argv[1:])}",
    }


def selecting(arguments: argparse.Namespace) -> str:
    """Returns the arguments that choose the tests of a run."""
    chosen = [f"--{name}={value}" for name in ("suite", "file", "test") for value in getattr(arguments, name)]
    chosen += [f"--upstream={value}" for value in arguments.upstream or ()]
    number, count = arguments.shard
    return shlex.join(
        [*chosen, *(f"--import={module}" for module in arguments.imports), f"--shard={number + 1}/{count}"]
    )


@contextlib.contextmanager
def only_run_in(folder: Path) -> Iterator[None]:
    """Raises UsageError if another process runs in the folder: each would take the other's results for its own."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(f"--folder {folder}: another run is going on there; give this one its own") from None
        yield


def go_on(folder: Path, parts: Sequence[str], described: dict[str, str], arguments: str, *, resume: bool) -> None:
    """Keeps in the folder what its record is of; a run that does not resume has none in the folder or in a part of it.
    Raises UsageError if a resumed record is of something else."""
    kept = folder / "environment.json"
    now = {what: described[what] for what in (*r.OF_ONE_RUN, "tests") if what in described} | {"arguments": arguments}
    if resume:
        if not kept.exists():
            raise UsageError(f"--resume: there is no record in {folder}: leave --resume out")
        if (before := json.loads(kept.read_text())) != now:
            raise UsageError(f"--resume: the record in {folder} is of {before}, not of {now}: leave --resume out")
        return
    for part in (folder, *(folder / name for name in parts)):
        (part / RESULTS).unlink(missing_ok=True)
    kept.write_text(json.dumps(now))


def repeat(arguments: argparse.Namespace) -> str:
    """Returns the command for one test of this run: Run.repeat."""
    command = ["python", "-m", "torch_mtia.conformance"]
    command += ["--driver", str(arguments.driver)] if arguments.driver else ["--device", arguments.device]
    command += [word for module in arguments.imports for word in ("--import", module)]
    command += ["--ledger", str(arguments.ledger)] if arguments.ledger else []
    command += [word for file in arguments.file for word in ("--file", str(file))]
    where = "--suite {suite} "
    if arguments.upstream:
        where = f"--upstream {shlex.quote(arguments.upstream[0])} {{suite}} "
    elif arguments.driver or arguments.file:
        where = ""
    return f"{shlex.join(command)} {where}--test {{test}} -j 0"


def summary(made: Run) -> str:
    """Returns one line for each suite."""
    columns = [r.PASS, r.XFAIL, r.SKIP, r.NOT_APPLICABLE, r.FAIL, r.XPASS]
    columns += [verdict for verdict in (r.FLAKY, r.ON_CPU) if any(result.verdict == verdict for result in made.results)]
    lines = [f"{'suite':<24}" + "".join(f"{column:>16}" for column in columns)]
    for suite, counts in made.verdicts().items():
        lines.append(f"{suite:<24}" + "".join(f"{counts[column]:>16}" for column in columns))
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parser().parse_args(argv)
    try:
        if not __debug__:
            raise UsageError("the suites check with assert, which PYTHONOPTIMIZE and python -O take away")
        check_targets([arguments.json, arguments.junit, arguments.report])
        return _merge(arguments) if arguments.merge else _run(arguments)
    except (UsageError, LedgerError, ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return USAGE


def check_targets(paths: Sequence[Path | None]) -> None:
    """Raises UsageError or OSError for a file that cannot be written when the run has ended."""
    for path in filter(None, paths):
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
            raise UsageError(f"{path} cannot be written")


def _ledger_of(kind: str) -> Path:
    """Returns the device's own; else that of drivers, or of other names of mtia."""
    path = FOLDER / f"{kind}.yaml"
    if path.exists():
        return path
    if kind.startswith("driver-"):
        return FOLDER / "driver.yaml"
    return FOLDER / "privateuse1.yaml" if kind == device_type() else path


def _checkout(arguments: argparse.Namespace) -> Checkout | None:
    if not arguments.upstream:
        return None
    if arguments.suite or arguments.file or arguments.driver:
        raise UsageError("--upstream goes with none of --suite, --file and --driver: its files run instead")
    return Checkout.at(Path(arguments.upstream[0]))


def _run(arguments: argparse.Namespace) -> int:
    os.environ[DEFER.name] = "1"  # processes load this package's device if it is the one under test: register_device()
    if "TORCH_MTIA_RUNTIME" not in os.environ:
        os.environ.setdefault("TORCH_MTIA_DEVICES", "2")  # for the tests of several; the processes inherit it
    checkout = _checkout(arguments)
    if arguments.driver:
        chosen, probed = driver_suite(arguments)
    else:
        chosen = checkout.files(arguments.upstream[1:]) if checkout else files(arguments.suite, arguments.file)
        probed = probe(arguments.device, arguments.imports)
    kind = probed["type"]
    if arguments.ledger and not arguments.update and not arguments.ledger.is_file():
        raise UsageError(f"--ledger {arguments.ledger}: no such file; --update proposes one")
    ledger = Ledger(arguments.ledger or (checkout.ledger(kind) if checkout else _ledger_of(kind)))
    old = Run.load(arguments.compare) if arguments.compare else None
    settings = Settings(
        device="cpu" if arguments.driver else probed["device"],
        driver=str(arguments.driver.resolve()) if arguments.driver else "",
        folder=str((arguments.folder or Path(f"conformance-{probed['type']}")).resolve()),
        ledger=str(ledger.path.resolve()),
        imports=tuple(arguments.imports),
        time_limit=arguments.time_limit,
        shard=arguments.shard,
        tests=tuple(arguments.test),
        inductor_tests=any(map(asks_for_inductor, arguments.file)),
    )
    described = environment(probed) | ({"tests": f"{checkout.kind.name} {checkout.version}"} if checkout else {})
    folder = Path(settings.folder)
    with only_run_in(folder):
        parts = [file.stem for file in chosen] if checkout else []
        go_on(folder, parts, described, selecting(arguments), resume=arguments.resume)
        run_chosen = run_files if checkout else run
        tests, complete = run_chosen(settings, chosen, arguments.jobs, ledger, resume=arguments.resume)
    if checkout:
        print(differences(tests))
    if complete:
        settings.check(result.test for result in tests)
    described |= {"selection": settings.selection(), "ledger": f"{ledger.path.name} {ledger.digest()}"}
    made = Run(described, tests, complete, arguments.shard, probed["functions"].split(), repeat(arguments))
    if arguments.update:
        proposal = ledger.proposal(tests, settings.collected())
        target = folder / "ledger.yaml"
        target.write_text(proposal)
        print(ledger.difference(proposal) or "The ledger agrees with the results.")
        place = f"copy it to {ledger.path}" if arguments.ledger else "copy it to your project and name it with --ledger"
        print(f"Proposed: {target}. Write the reasons that are missing, then {place}.")
    return _tell(made, arguments, old)


def _merge(arguments: argparse.Namespace) -> int:
    without = ("imports", "suite", "test", "shard", "file", "upstream", "ledger", "folder", "resume", "update")
    if given := [name for name in without if getattr(arguments, name) != parser().get_default(name)]:
        raise UsageError(f"--merge does not go with --{given[0].removesuffix('s')}: nothing runs or is judged again")
    old = Run.load(arguments.compare) if arguments.compare else None
    return _tell(Run.merged([Run.load(path) for path in arguments.merge]), arguments, old)


def _tell(made: Run, arguments: argparse.Namespace, old: Run | None) -> int:
    """Prints and writes what was asked for. The exit status."""
    print(summary(made))
    if old is not None:
        for what, names in changes(old.results, made.results).items():
            print(f"{what}: {len(names)}", *(f"  {name}" for name in names[:50]), sep="\n")
    if arguments.json:
        made.save(arguments.json)
    if arguments.junit:
        made.save_junit(arguments.junit)
    if arguments.report:
        save_html(made, arguments.report, old)
    if not made.complete:
        print("Interrupted; --resume goes on.", file=sys.stderr)
        return INTERRUPTED
    return UNEXPECTED if any(result.verdict in r.UNEXPECTED for result in made.results) else AS_EXPECTED


if __name__ == "__main__":
    sys.exit(main())
