"""Runs test files of a checkout of PyTorch or Triton on mtia, through the conformance suite; see README.md."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from torch_mtia.environment import device_type

LEDGERS = Path(__file__).parent / "ledgers"

# PyTorch's files that are generic in the device, or have parts that are.
FILES = (
    *("test_accelerator", "test_autograd", "test_binary_ufuncs", "test_foreach", "test_indexing", "test_linalg"),
    *("test_modules", "test_nn", "test_ops", "test_ops_fwd_gradients", "test_ops_gradients", "test_optim"),
    *("test_reductions", "test_scatter_gather_ops", "test_serialization", "test_shape_ops", "test_sort_and_select"),
    *("test_tensor_creation_ops", "test_torch", "test_type_promotion", "test_unary_ufuncs", "test_view_ops"),
)


def path_of(checkout: Path, name: str) -> Path:
    """The file of that name: in PyTorch's test folder, or a path in the checkout."""
    candidates = (checkout / "test" / f"{name}.py", checkout / f"{name}.py", checkout / name)
    found = next((path for path in candidates if path.is_file()), None)
    if found is None:
        sys.exit(f"{name}: no such file; looked for {', '.join(map(str, candidates))}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, epilog="Other options are the conformance suite's.")
    parser.add_argument("checkout", type=Path, help="the folder of PyTorch or Triton")
    parser.add_argument("names", nargs="*", help="files, as test_torch; default: those that are generic")
    parser.add_argument("--device", default=device_type())
    parser.add_argument("--folder", type=Path, default=Path("build/upstream"))
    arguments, options = parser.parse_known_args()
    if not arguments.checkout.is_dir():
        parser.error(f"{arguments.checkout} is not a folder: check out PyTorch first, see README.md")
    worst = 0
    for path in [path_of(arguments.checkout, name) for name in arguments.names or FILES]:
        print(f"{path.stem}:", flush=True)
        folder = arguments.folder / path.stem
        command = [sys.executable, "-m", "torch_mtia.conformance", "--device", arguments.device, "--file", str(path)]
        command += ["--folder", str(folder), "--ledger", str(LEDGERS / arguments.device / f"{path.stem}.yaml")]
        command += ["--json", str(folder / "results.json"), "--report", str(folder / "report.html"), *options]
        worst = max(worst, subprocess.run(command).returncode)
    return worst


if __name__ == "__main__":
    sys.exit(main())
