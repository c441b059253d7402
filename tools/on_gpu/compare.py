"""On a machine with a GPU: are the kernels of a report what the GPU's own process compiles, and is none faster than its
bound?

    here:   python -m torch_mtia.triton --target cuda:90 --bound --json report.json SCRIPT
    there:  python tools/on_gpu/compare.py report.json SCRIPT [ARGS]

It needs PyTorch and the report's version of Triton, for CUDA or ROCm, and not torch_mtia. SCRIPT is the same program,
which asks Triton for its device: `triton.runtime.driver.active.get_active_torch_device()`, as kernels.py does.
The first launch of each specialization is compared with the report, and timed with a cold cache
(triton.testing.do_bench) for as long as --seconds allows. Prints a line for each, and exits with 1 if code
differs or a time is below its bound.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import runpy
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

_BINARY = Path(__file__).parents[2] / "torch_mtia/portability/binary.py"
_PRODUCTS = ("A100", "H100", "H200", "B200", "MI300X")


class Launch(NamedTuple):
    """The first launch of a specialization."""

    record: Mapping[str, Any]  # what identifies it, as in the report's JSON
    code: bytes  # cubin or hsaco
    milliseconds: float | None  # None: not timed


def code_sha256(data: bytes) -> str:
    """Returns what torch_mtia's report calls so."""
    spec = importlib.util.spec_from_file_location("binary", _BINARY)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return str(module.code_sha256(data))


def identity(record: Mapping[str, Any]) -> str:
    """Returns what is the same in the report and here: kernel, types, constants, alignment and options."""
    names = ("kernel", "signature", "constants", "aligned", "options")
    return json.dumps([record[name] for name in names], sort_keys=True)


def record_of(source: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the record of an ASTSource and the options of its launch, as the report writes it."""
    names, kinds = list(source.signature), list(source.signature.values())
    constants = {
        names[path[0]]: value if isinstance(value, (bool, int, float, str)) else str(value)
        for path, value in source.constants.items()
        if len(path) == 1 and kinds[path[0]] == "constexpr" and value is not None
    }
    return {
        "kernel": source.fn.__name__,
        "signature": {name: str(kind) for name, kind in source.signature.items()},
        "constants": constants,
        "aligned": [
            name for place, name in enumerate(names) if ["tt.divisibility", 16] in source.attrs.get((place,), [])
        ],
        "options": {name: str(value) for name, value in options.items()},
    }


class Recorder:
    """Records the first launch of each specialization while a program runs. `time`: the milliseconds of a launch."""

    def __init__(self, time: Callable[[Callable[[], object]], float | None]) -> None:
        self.launches: dict[str, Launch] = {}
        self._time = time

    def run(self, launch: Callable[..., Any]) -> Callable[..., Any]:
        """Returns what takes the place of JITFunction.run."""

        def recorded(fn: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
            compiled = launch(fn, *args, grid=grid, warmup=warmup, **kwargs)
            if warmup or compiled is None:
                return compiled
            given = {name: value for name, value in kwargs.items() if name not in compiled.src.signature}
            record = record_of(compiled.src, {"debug": compiled.metadata.debug, **given})
            if (key := identity(record)) not in self.launches:
                code = compiled.asm["cubin" if "cubin" in compiled.asm else "hsaco"]
                milliseconds = self._time(lambda: launch(fn, *args, grid=grid, warmup=warmup, **kwargs))
                self.launches[key] = Launch(record, code, milliseconds)
            return compiled

        return recorded


class Line(NamedTuple):
    text: str
    is_good: bool


def compared(rows: Iterable[Mapping[str, Any]], launches: Mapping[str, Launch], product: str) -> Iterator[Line]:
    """Returns a line for each row of the GPU's target, and for each launch that has none."""
    rest = dict(launches)
    for row in rows:
        launch = rest.pop(identity(row), None)
        title = f"{row['kernel']}({', '.join(f'{name}={value}' for name, value in row['constants'].items())})"
        if launch is None:
            is_expected = row["status"] != "compiles"
            yield Line(f"{title}: {row['status']}, and was not launched here", is_expected)
            continue
        is_same = row["code_sha256"] == code_sha256(launch.code)
        text = f"{title}: {'same code' if is_same else 'OTHER CODE'}"
        bound = next((each["microseconds"] for each in row["bounds"] if product and product in each["product"]), None)
        is_slower = True
        if launch.milliseconds is not None:
            text += f", {1e3 * launch.milliseconds:.2f} us"
            if bound:
                ratio = 1e3 * launch.milliseconds / bound
                is_slower = ratio >= 1
                text += f", bound {bound:.3g} us, ratio {ratio:.2f}{'' if is_slower else ' BELOW THE BOUND'}"
        yield Line(text, is_same and is_slower)
    for launch in rest.values():
        yield Line(f"{launch.record['kernel']}: launched here, and not in the report", False)


def _timer(seconds: float) -> Callable[[Callable[[], object]], float | None]:
    from triton.testing import do_bench

    end = time.monotonic() + seconds

    def milliseconds(launch: Callable[[], object]) -> float | None:
        if time.monotonic() > end:
            return None
        return float(do_bench(launch, warmup=10, rep=50, return_mode="min"))

    return milliseconds


def main() -> None:
    parser = argparse.ArgumentParser("compare.py", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=float, default=300, help="after which launches are compared and not timed")
    parser.add_argument("report", type=Path, help="JSON of torch_mtia")
    parser.add_argument("script", help="the program of the report")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="arguments of the script")
    options = parser.parse_args()

    import torch
    import triton
    from triton.runtime import driver, jit

    report = json.loads(options.report.read_text())
    target = driver.active.get_current_target()
    name = f"{target.backend}:{str(target.arch).partition(':')[0]}"
    rows = [row for row in report["rows"] if row["target"] == name]
    if report["triton"] != triton.__version__:
        parser.error(f"the report is of Triton {report['triton']}, and this is {triton.__version__}")
    if not rows:
        parser.error(f"the report has no rows for {name}, but for {', '.join(report['targets'])}")
    device = torch.cuda.get_device_name()
    product = next((each for each in _PRODUCTS if each in device), "")
    recorder = Recorder(_timer(options.seconds))
    jit.JITFunction.run = recorder.run(jit.JITFunction.run)
    sys.argv = [options.script, *options.arguments]
    runpy.run_path(options.script, run_name="__main__")
    lines = list(compared(rows, recorder.launches, product))
    print(f"{device}, Triton {triton.__version__}, target {name}, bounds of {product or 'no product that is known'}")
    print("\n".join(line.text for line in lines))
    sys.exit(any(not line.is_good for line in lines))


if __name__ == "__main__":
    main()
