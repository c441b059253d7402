"""What Triton's backend knows of the driver's header comes from the header."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tools.codegen import kernel_abi
from torch_mtia.triton import abi

HEADER = kernel_abi.HEADER.read_text()


def test_the_module_is_what_the_header_says() -> None:
    kernel_abi.check()
    assert abi.KERNEL_IMAGE_MAGIC.to_bytes(8, "little") == b"mtiaknl1"


def test_a_header_that_changed_stops_the_build(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    changed = tmp_path / "mtia_runtime.h"
    changed.write_text(HEADER.replace("  int64_t host_offset;", "  int64_t more;\n  int64_t host_offset;"))
    monkeypatch.setattr(kernel_abi, "HEADER", changed)
    with pytest.raises(RuntimeError, match=r"run python -m tools\.codegen\.kernel_abi"):
        kernel_abi.check()


@pytest.mark.parametrize("wrong", [False, True])
def test_the_compiler_has_the_last_word(tmp_path: Path, wrong: bool) -> None:
    text = kernel_abi.assertions(HEADER)
    if wrong:
        text = text.replace(
            "offsetof(mtia_kernel_context, host_offset) == 16", "offsetof(mtia_kernel_context, host_offset) == 8"
        )
    source = tmp_path / "abi.cpp"
    source.write_text(text)
    command = ["g++", "-std=c++20", f"-I{kernel_abi.ROOT}/csrc", "-fsyntax-only", str(source)]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (finished.returncode != 0) == wrong
    assert ("static assertion failed" in finished.stderr) == wrong
