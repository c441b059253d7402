"""The rows of a report: one for each specialization of a kernel and target. Compiles what was recorded."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

from torch_mtia.gpu_targets import Target
from torch_mtia.portability import assembly, transfer
from torch_mtia.portability.assembly import Access, Code
from torch_mtia.portability.chips import CHIPS
from torch_mtia.portability.launches import Specialization
from torch_mtia.portability.occupancy import Occupancy, occupancy
from torch_mtia.portability.workers import Answer, Job, Pool

COMPILES, DOES_NOT_FIT, FAILS = "compiles", "does not fit", "fails"
MAX_GRID = 65535  # programs in y and z, of CUDA


@dataclasses.dataclass
class Row:
    """What one specialization of a kernel is on one target."""

    kernel: str
    file: str
    line: int  # of `def`
    specialization: Specialization
    target: str
    status: str = FAILS  # COMPILES, DOES_NOT_FIT or FAILS
    message: str = ""  # the compiler's, or why it does not fit
    place: tuple[str, int] | None = None  # in the program's source, that the message is about
    code: Code | None = None
    occupancy: Occupancy | None = None  # None: nothing is known of the chip
    max_shared: int | None = None
    has_dot: bool = False
    files: dict[str, str] = dataclasses.field(default_factory=dict)  # of the compiled kernel, by kind: "ptx", "cubin"
    # By access: bytes one after the other that a warp accesses; 0: no two elements are adjacent; None: not known.
    contiguous: dict[tuple[str, int, str], int | None] = dataclasses.field(default_factory=dict)
    reasons: dict[tuple[str, int, str], str] = dataclasses.field(default_factory=dict)  # by access: why it is narrow

    @property
    def constants(self) -> dict[str, Any]:
        """Returns the values of the constexprs."""
        source = self.specialization.source
        names, kinds = list(source.signature), list(source.signature.values())
        return {
            names[path[0]]: value
            for path, value in source.constants.items()
            if len(path) == 1 and kinds[path[0]] == "constexpr" and value is not None
        }

    @property
    def title(self) -> str:
        """Returns the constexprs and the options, as they are written at a launch."""
        shown = {**self.constants, **self.specialization.options}
        return ", ".join(f"{name}={_shown(value)}" for name, value in shown.items() if name != "debug" or value)

    @property
    def key(self) -> str:
        """Returns what is the same in another run: the kernel, its specialization and the target."""
        source = self.specialization.source
        kinds = [f"{name}: {kind}" for name, kind in source.signature.items() if kind != "constexpr"]
        aligned = sorted(path[0] for path, attributes in source.attrs.items() if attributes)
        return f"{self.kernel}({', '.join(kinds)}; aligned {aligned}; {self.title}) on {self.target}"

    @property
    def narrow(self) -> list[Access]:
        """Returns the loads and stores that are narrower than a thread's access can be."""
        accesses = self.code.accesses if self.code is not None else ()
        return [each for each in accesses if each.kind != "atomic" and 0 < each.narrowest < assembly.WIDEST]


def _shown(value: Any) -> str:
    return str(getattr(value, "__name__", value)) if not isinstance(value, str) else repr(value)


def rows_of(specialization: Specialization, targets: Iterable[Target]) -> list[Row]:
    """Returns a row for each target, that says nothing yet."""
    fn = specialization.source.fn
    before = next((n for n, text in enumerate(fn.raw_src) if text.lstrip().startswith("def ")), 0)
    file, line = fn.fn.__code__.co_filename, fn.starting_line_number + before
    return [Row(fn.__name__, file, line, specialization, str(target)) for target in targets]


def compile_rows(specializations: Iterable[Specialization], targets: Sequence[Target], pool: Pool) -> list[Row]:
    """Returns a row for each specialization and target."""
    rows: list[Row] = []
    jobs: list[Job] = []
    waiting: list[Row] = []
    for each in specializations:
        new = rows_of(each, targets)
        rows += new
        try:
            kernel = transfer.encode(each.source)
        except transfer.Unsendable as error:
            for row in new:
                row.message = f"cannot be compiled in another process: {error}"
            continue
        waiting += new
        jobs += [job(each, kernel, target) for target in targets]
    for row, answer in zip(waiting, pool.answers(jobs), strict=True):
        fill(row, answer)
    return rows


def job(specialization: Specialization, kernel: bytes, target: Target, aligned: tuple[int, ...] = ()) -> Job:
    """Returns what a worker is asked. `aligned`: positions of arguments that count as divisible by 16."""
    short = specialization.short if target.backend == "hip" else ()
    return {
        "kernel": kernel,
        "target": tuple(target),
        "options": specialization.options,
        "aligned": aligned,
        "short": short,
    }


def fill(row: Row, answer: Answer) -> None:
    """Writes what a worker has answered into its row."""
    if "error" in answer:
        row.message, row.place = answer["error"].partition("\nRepro command")[0].strip(), answer["place"]
        return
    row.code = code = assembly.read(answer["files"], answer["metadata"], answer["resources"], answer["sass"])
    row.status, row.files = COMPILES, answer["files"]
    row.has_dot = "tt.dot" in answer["ttir"]
    chip = CHIPS.get(row.target)
    if chip is None:
        return
    row.max_shared = chip.max_shared
    columns = answer["metadata"].get("tmem_size") or 0
    is_cuda = row.target.startswith("cuda")
    row.occupancy = occupancy(chip, is_cuda, code.allocated, code.shared, code.warps, columns)
    if code.shared > chip.max_shared:
        row.message = _out_of_resources(code.shared, chip.max_shared, "shared memory")
    elif columns > chip.tensor_memory:
        row.message = _out_of_resources(columns, chip.tensor_memory, "tensor memory")
    elif not row.occupancy.programs:
        if code.warps > chip.max_warps:
            row.message = _out_of_resources(code.warps, chip.max_warps, "warps")
        else:
            row.message = _out_of_resources(code.registers, chip.max_registers, "registers")
    elif is_cuda and max(row.specialization.grid[1:]) > MAX_GRID:
        grid = "x".join(map(str, row.specialization.grid))
        row.message = f"the grid of the launch here is {grid}, and there are at most {MAX_GRID:,} programs in y and z"
    if row.message:
        row.status = DOES_NOT_FIT


def _out_of_resources(required: int, limit: int, name: str) -> str:
    from triton.runtime.errors import OutOfResources

    return str(OutOfResources(required, limit, name))
