"""The settings: every environment variable this package reads, and the only place in Python that reads them.

To add one: a row here, a field in `Settings`, and `make docs` for the table of docs/environment.md.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

T = TypeVar("T")

PREFIX = "TORCH_MTIA_"
MAX_DEVICES = 64
MIN_MEMORY = 64 << 20
LOGS = ("launch",)
KERNELS = ("aten", "triton", "auto")
AUTOLOADS = ("auto", "0", "1")
FALLBACK_CONTROLS = ("force", "deny", "warn")
FALLBACK_WARNINGS = ("never", "once", "always")
NUMERICS = ("default", "eager_equals_compiled", "batch_invariant")
CHECKS = ("streams", "memory", "init", "kernels", "numbers")
LIBRARY_FOLDER = Path(__file__).resolve().parent / "lib"
BUNDLED_DRIVERS = {"host": LIBRARY_FOLDER / "libmtia_host.so"}


# Neither class is a dataclass, which takes a millisecond to make when this module is imported.
class Variable(Generic[T]):
    """One environment variable. `parse` raises ValueError for what `values` does not describe."""

    def __init__(self, name: str, default: str, parse: Callable[[str], T], values: str, help: str) -> None:
        self.name = name
        self.default = default
        self.parse = parse
        self.values = values
        self.help = help

    @property
    def field(self) -> str:
        """Its name in `Settings`."""
        return self.name.removeprefix(PREFIX).lower()

    def read(self, environ: Mapping[str, str]) -> T:
        """Returns the value. Raises ValueError, which names the variable and what is valid."""
        text = environ.get(self.name, self.default)
        try:
            return self.parse(text)
        except ValueError as error:
            reason = f" ({error})" if str(error) else ""
            raise ValueError(f"{self.name}={text!r} is not valid{reason}. Valid: {self.values}.") from None

    def read_or_default(self, environ: Mapping[str, str]) -> T:
        """Returns the value, or the default where the text is not valid."""
        try:
            return self.read(environ)
        except ValueError:
            return self.parse(self.default)


class Settings(NamedTuple):
    """The settings of a process: the field `devices` has the value of `TORCH_MTIA_DEVICES`, and so on.

    Attributes:
        memory: bytes of one device; None for half of what there is.
        delay: a seed; 0 for no delays.
        poison: whether memory without contents is filled.
        order: a seed; 0 for the order of programs' numbers.
        emulate: the GPU whose numbers kernels compute, or "".
        sanitize: the sanitizer's checks.
        sanitize_json: a file, or "".
        sanitize_suppressions: a file, or "".
        targets: GPUs that kernels are compiled for.
        refuse: whether a launch raises what they say to it.
        runtime: the driver's library.
        log: what is logged, such as "launch".
        privateuse1: the device type; "" for mtia.
        kernels: "aten", "triton" or "auto".
        fallback: controls of the CPU fallback, such as "force:aten::mm".
        numerics: one of NUMERICS.
        machine: a name, or "".
        autoload: "auto", "0" or "1".
        system_root: the folder that stands in for "/", or "".
    """

    devices: int
    memory: int | None  # None: see machine_memory.h
    launch_blocking: bool
    delay: int
    poison: bool
    order: int
    emulate: str
    check_bounds: bool
    sanitize: frozenset[str]
    sanitize_json: str
    sanitize_suppressions: str
    targets: tuple[str, ...]
    refuse: bool
    runtime: Path
    log: frozenset[str]
    privateuse1: str
    kernels: str
    fallback: frozenset[str]
    numerics: str
    machine: str
    autoload: str
    defer: bool
    clients: bool
    system_root: str


def _parse_devices(text: str) -> int:
    if text == "auto":  # torchrun says how many processes of one job the machine has
        local_ranks = os.environ.get("LOCAL_WORLD_SIZE", "")
        return min(int(local_ranks), MAX_DEVICES) if re.fullmatch(r"[1-9][0-9]{0,8}", local_ranks) else 1
    if not re.fullmatch(r"[0-9]+", text) or not 1 <= int(text) <= MAX_DEVICES:
        raise ValueError
    return int(text)


def _parse_memory(text: str) -> int | None:
    if text == "auto":
        return None
    match = re.fullmatch(r"([0-9]+)(?:([KMGT])(?:i?B)?)?", text, re.IGNORECASE)
    if match is None:
        raise ValueError
    size = int(match[1]) << {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}[(match[2] or "").upper()]
    if not MIN_MEMORY <= size < 1 << 63:
        raise ValueError(f"{size} bytes are too {'few' if size < MIN_MEMORY else 'many'}")
    return size


def _parse_flag(text: str) -> bool:
    if text not in ("0", "1"):
        raise ValueError
    return text == "1"


def _parse_seed(text: str) -> int:
    if not re.fullmatch(r"[0-9]+", text) or int(text) >= 1 << 63:
        raise ValueError
    return int(text)


def _parse_runtime(text: str) -> Path:
    if text in BUNDLED_DRIVERS:
        return BUNDLED_DRIVERS[text]
    if os.sep not in text and not text.endswith(".so"):
        raise ValueError("no driver of that name")
    path = Path(text).expanduser().resolve()
    if not path.is_file():
        raise ValueError("no such file")
    return path


def _parse_log(text: str) -> frozenset[str]:
    names = frozenset(filter(None, text.split(",")))
    if unknown := sorted(names - set(LOGS)):
        raise ValueError(f"there is no log {', '.join(map(repr, unknown))}")
    return names


def _parse_fallback(text: str) -> frozenset[str]:
    items = frozenset(text.split(",")) if text else frozenset()
    for item in sorted(items):
        control, _, value = item.partition(":")
        if control not in FALLBACK_CONTROLS or not value:
            raise ValueError(f"{item!r} is none of these")
        if control == "warn" and value not in FALLBACK_WARNINGS:
            raise ValueError(f"there is no mode {value!r}")
    if sum(item.startswith("warn:") for item in items) > 1:
        raise ValueError("warn has two modes")
    return items


def check_device_name(name: str) -> str:
    """Returns the name. Raises ValueError unless it can be a device type, which PyTorch writes in lowercase."""
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise ValueError(
            f"name must be lowercase letters, digits and underscores, beginning with a letter, not {name!r}"
        )
    return name


def _parse_privateuse1(text: str) -> str:
    return check_device_name(text) if text else ""


def _parse_sanitize(text: str) -> frozenset[str]:
    checks = frozenset(text.split(",")) if text else frozenset()
    if not checks <= set(CHECKS):
        raise ValueError
    return checks


def _parse_targets(text: str) -> tuple[str, ...]:
    if not text:
        return ()
    from torch_mtia.gpu_targets import parse_all

    return tuple(map(str, parse_all(text.split(","))))


def _parse_emulate(text: str) -> str:
    if not text:
        return ""
    from torch_mtia.gpu_targets import parse

    return str(parse(text))


def _parse_system_root(text: str) -> str:
    if text and not Path(text).is_dir():
        raise ValueError("no such folder")
    return text


def _parse_file(text: str) -> str:
    if text and not Path(text).is_file():
        raise ValueError("no such file")
    return text


def _one_of(names: tuple[str, ...]) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in names:
            raise ValueError
        return text

    return parse


DEVICES = Variable(
    "TORCH_MTIA_DEVICES",
    "auto",
    _parse_devices,
    f"an integer from 1 to {MAX_DEVICES}, or `auto`",
    "Number of devices of the software device. `auto` is the number of processes that torchrun has started on the "
    "machine (`LOCAL_WORLD_SIZE`), or one.",
)
MEMORY = Variable(
    "TORCH_MTIA_MEMORY",
    "auto",
    _parse_memory,
    "bytes, with or without a suffix for a power of 1024 (`512M`, `8G`, `1GiB`), at least `64M`; or `auto`",
    "Memory of each device. `auto` is half of the machine's memory, or of the lowest limit of the containers around "
    "the process, divided by the number of devices.",
)
LAUNCH_BLOCKING = Variable(
    "TORCH_MTIA_LAUNCH_BLOCKING",
    "0",
    _parse_flag,
    "`0` or `1`",
    "With `1`, every launch waits for its work and raises the work's errors. It does not wait for work that a host "
    "function submits to another stream. For debugging.",
)
DELAY = Variable(
    "TORCH_MTIA_DELAY",
    "0",
    _parse_seed,
    "an integer; `0` for no delays",
    "Seed of random delays. A stream's work starts when its delay ends or something waits for it, so that a missing "
    "`wait_stream` or `record_stream` gives wrong data. For debugging.",
)
POISON = Variable(
    "TORCH_MTIA_POISON",
    "0",
    _parse_flag,
    "`0` or `1`",
    "With `1`, memory is filled with bytes of 0xFF, which are NaN, when it is allocated, and of 0xCC when it is freed. "
    "A program that reads what it has not written gives wrong data ([memory](memory.md#poison)). For debugging.",
)
ORDER = Variable(
    "TORCH_MTIA_ORDER",
    "0",
    _parse_seed,
    "an integer; `0` for the usual order",
    "Seed of a random order in which the programs of a Triton kernel's launch start, and take turns at atomic "
    "operations, stores and volatile loads. A kernel that relies on an order gives wrong data "
    "([triton](triton.md#programs-in-a-random-order)). For debugging.",
)
EMULATE = Variable(
    "TORCH_MTIA_EMULATE",
    "",
    _parse_emulate,
    "a GPU as Triton names it, such as `cuda:90`; or empty",
    "GPU whose `tl.dot` and conversions Triton kernels compute, as far as they are known "
    "([portability](portability.md#the-numbers-of-a-gpu)). The launch option `emulate` is for one kernel.",
)
CHECK_BOUNDS = Variable(
    "TORCH_MTIA_CHECK_BOUNDS",
    "0",
    _parse_flag,
    "`0` or `1`",
    "With `1`, a Triton kernel that accesses memory outside of all live tensors raises an error at the next "
    "synchronizing call, which names the kernel, the program and the line. The sanitizer, with any of its checks, "
    "reports the access instead. For debugging.",
)
SANITIZE = Variable(
    "TORCH_MTIA_SANITIZE",
    "",
    _parse_sanitize,
    f"a comma-separated list of {', '.join(f'`{name}`' for name in CHECKS)}; or empty",
    "Checks of the [sanitizer](sanitizer.md), which runs from the start of the process and prints its reports at the "
    "end. For debugging.",
)
SANITIZE_JSON = Variable(
    "TORCH_MTIA_SANITIZE_JSON",
    "",
    lambda text: text,
    "a file, or empty",
    "File to which each process under the sanitizer appends its reports when it ends: a line of JSON for each report, "
    "with the rank and the process id.",
)
SANITIZE_SUPPRESSIONS = Variable(
    "TORCH_MTIA_SANITIZE_SUPPRESSIONS",
    "",
    _parse_file,
    "a file, or empty",
    "File of the reports to suppress, with reasons ([sanitizer](sanitizer.md#suppressions)).",
)
TARGETS = Variable(
    "TORCH_MTIA_TARGETS",
    "",
    _parse_targets,
    "a comma-separated list of GPUs as Triton names them, such as `cuda:90,hip:gfx942`; or empty",
    "GPUs for which the Triton kernels of the process are compiled at its end, by Triton's own back ends. What they "
    "are there is printed on stderr ([portability](portability.md)).",
)
REFUSE = Variable(
    "TORCH_MTIA_REFUSE",
    "0",
    _parse_flag,
    "`0` or `1`",
    "With `1`, a launch of a Triton kernel that one of `TORCH_MTIA_TARGETS` does not compile, or has no resources for, "
    "raises what the target says. Each kernel is compiled for the targets before its first launch.",
)
RUNTIME = Variable(
    "TORCH_MTIA_RUNTIME",
    "host",
    _parse_runtime,
    f"{', '.join(f'`{name}`' for name in BUNDLED_DRIVERS)}, or the path of a shared library",
    "The driver: the name of one in the package, or the path of another.",
)
LOG = Variable(
    "TORCH_MTIA_LOG",
    "",
    _parse_log,
    f"a comma-separated list of {', '.join(f'`{name}`' for name in LOGS)}; or empty",
    "What is logged on stderr. `launch`: a line for each work item, with its device, stream and name.",
)
PRIVATEUSE1 = Variable(
    "TORCH_MTIA_PRIVATEUSE1",
    "",
    _parse_privateuse1,
    "a device type in lowercase letters, digits and underscores; or empty",
    "Device type of the devices in place of `mtia`, through PyTorch's [PrivateUse1](privateuse1.md).",
)
CHOSEN_KERNELS = Variable(
    "TORCH_MTIA_KERNELS",
    "auto",
    _one_of(KERNELS),
    ", ".join(f"`{name}`" for name in KERNELS),
    "Which kernels run the operators that have both: ATen's, or [Triton kernels](kernels.md). `auto` is `triton` for a "
    "driver without a host view, and `aten` for all others.",
)
FALLBACK = Variable(
    "TORCH_MTIA_FALLBACK",
    "",
    _parse_fallback,
    "a comma-separated list of `force:OPERATOR`, `deny:OPERATOR` and `warn:MODE`, where the mode is "
    f"{', '.join(f'`{mode}`' for mode in FALLBACK_WARNINGS)}; or empty",
    "Controls of the [CPU fallback](fallback.md#in-the-environment) from the start of the process. `force` makes an "
    "operator fall back, and `deny` makes a fallback of the operator an error; the operator `all` stands for all.",
)
CHOSEN_NUMERICS = Variable(
    "TORCH_MTIA_NUMERICS",
    "default",
    _one_of(NUMERICS),
    ", ".join(f"`{name}`" for name in NUMERICS),
    "Which bits are promised from the start of the process, as by `torch_mtia.numerics` "
    "([accuracy](accuracy.md#bits-that-are-promised)).",
)
MACHINE = Variable(
    "TORCH_MTIA_MACHINE",
    "",
    lambda text: text.replace("%p", str(os.getpid())),
    "a name, in which `%p` stands for the process id; or empty",
    "Name of the machine that the process pretends to run on. Processes of a group with different names use "
    "the network between them ([distributed](distributed.md)); with `%p`, all do. For testing.",
)
AUTOLOAD = Variable(
    "TORCH_MTIA_AUTOLOAD",
    "auto",
    _one_of(AUTOLOADS),
    ", ".join(f"`{name}`" for name in AUTOLOADS),
    "Whether `import torch` loads the device. `auto` loads it unless the machine has a GPU for which PyTorch is built "
    "([FAQ](faq.md#can-i-use-it-in-a-machine-that-has-a-gpu)); if `TORCH_MTIA_PRIVATEUSE1` names the device, then too. "
    "`import torch_mtia` loads it with all values.",
)
DEFER = Variable(
    "TORCH_MTIA_DEFER",
    "0",
    _parse_flag,
    "`0` or `1`",
    "With `1`, neither `import torch` nor `import torch_mtia` loads the device. The first use of a name of "
    "`torch_mtia` does, and unsets the variable. The conformance suite sets it in its processes, which may test "
    "another device.",
)
CLIENTS = Variable(
    "TORCH_MTIA_CLIENTS",
    "1",
    _parse_flag,
    "`0` or `1`",
    "With `0`, nothing is replaced in libraries that use PyTorch ([clients](clients.md)), such as transformers, "
    "accelerate and Lightning, which then use the device only on request, if at all.",
)
# Drivers read it themselves (csrc/runtime/machine_memory.h).
SYSTEM_ROOT = Variable(
    "TORCH_MTIA_SYSTEM_ROOT",
    "",
    _parse_system_root,
    "a folder, or empty",
    "Folder in place of `/` for the files that say how much memory the machine and its containers have "
    "([memory](memory.md)), and for device files of GPUs. For testing.",
)
VARIABLES: tuple[
    Variable[int]
    | Variable[int | None]
    | Variable[bool]
    | Variable[str]
    | Variable[Path]
    | Variable[frozenset[str]]
    | Variable[tuple[str, ...]],
    ...,
] = (
    DEVICES,
    MEMORY,
    LAUNCH_BLOCKING,
    DELAY,
    POISON,
    ORDER,
    EMULATE,
    CHECK_BOUNDS,
    SANITIZE,
    SANITIZE_JSON,
    SANITIZE_SUPPRESSIONS,
    TARGETS,
    REFUSE,
    RUNTIME,
    LOG,
    PRIVATEUSE1,
    CHOSEN_KERNELS,
    FALLBACK,
    CHOSEN_NUMERICS,
    MACHINE,
    AUTOLOAD,
    DEFER,
    CLIENTS,
    SYSTEM_ROOT,
)


def parse(environ: Mapping[str, str]) -> tuple[Settings, tuple[str, ...]]:
    """Returns the settings, and what is wrong with the environment: a message for each variable that is unknown or
    whose value is not valid. In place of such a value there is the default."""
    known = [variable.name for variable in VARIABLES]
    problems = [_unknown(name, known) for name in sorted(environ) if name.startswith(PREFIX) and name not in known]
    values: dict[str, Any] = {}
    for variable in VARIABLES:
        try:
            values[variable.field] = variable.read(environ)
        except ValueError as error:
            problems.append(str(error))
            values[variable.field] = variable.parse(variable.default)
    return Settings(**values), tuple(problems)


def _unknown(name: str, known: list[str]) -> str:
    import difflib  # not needed by a process whose variables are right

    similar = difflib.get_close_matches(name, known, 1)
    hint = f"did you mean {similar[0]}?" if similar else "unset it."
    return f"{name} is not a setting of torch_mtia: {hint} Valid names: {', '.join(known)}."


def read(environ: Mapping[str, str]) -> Settings:
    """Parses the settings. Raises ValueError, listing what is valid, for unknown names and malformed values."""
    settings, problems = parse(environ)
    if problems:
        raise ValueError(" ".join(problems))
    return settings


@functools.cache
def settings() -> Settings:
    """Returns the settings of this process, read at the first call. Later changes of the environment have no effect.

    Raises:
        ValueError: a variable that begins with TORCH_MTIA_ is unknown, or its value is not valid. The message lists
            what is valid.
    """
    return read(os.environ)


class _Watching:
    """Whether somebody follows the accesses of kernels."""

    is_wanted = False
    wants_numbers = False


def watch_kernels(wanted: bool, numbers: bool = False) -> None:
    """Whether Triton kernels that are compiled from now on let their accesses be followed, as the sanitizer asks, and
    with `numbers` what they compute."""
    _Watching.is_wanted = wanted
    _Watching.wants_numbers = wanted and numbers


def kernels_are_watched() -> bool:
    return _Watching.is_wanted or settings().check_bounds


def numbers_are_watched() -> bool:
    return _Watching.wants_numbers


def device_type() -> str:
    """Returns the devices' type, for code that does without PyTorch. `torch_mtia.privateuse1.enable` sets the
    variable."""
    return PRIVATEUSE1.read_or_default(os.environ) or "mtia"


def markdown_table() -> str:
    """Returns the variables as the table of docs/environment.md."""
    lines = ["| variable | default | values | meaning |", "|---|---|---|---|"]
    lines += [f"| `{v.name}` | {f'`{v.default}`' if v.default else ''} | {v.values} | {v.help} |" for v in VARIABLES]
    return "\n".join(lines)
