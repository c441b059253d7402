"""Packages that were made for something else, and models of which there can be no package, are refused."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor, nn
from torch._dynamo.exc import Unsupported
from torch._inductor.exc import InductorError
from torch.utils import _triton
from torch.utils.cpp_extension import get_cxx_compiler
from triton.tools.tensor_descriptor import TensorDescriptor

import torch_mtia
from tests import packages
from tests.packages import MakePackage, inputs, load
from torch_mtia import _C
from torch_mtia.triton import abi

if TYPE_CHECKING:
    from tests.conftest import RunScript

make_package, classifier, embedded = packages.make_package, packages.classifier, packages.embedded
_without_gradients = packages.without_gradients
DRIVER = _C._driver_info()["name"]


def changed(path: Path, to: Path, change: Callable[[bytes], bytes], suffix: str = ".so") -> Path:
    """The package with other bytes in the files of that kind."""
    with zipfile.ZipFile(path) as archive, zipfile.ZipFile(to, "w") as written:
        found = False
        for entry in archive.infolist():
            data = archive.read(entry)
            if entry.filename.endswith(suffix):
                found = found or change(data) != data
                data = change(data)
            written.writestr(entry, data)
    assert found
    return to


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (f"\0{torch_mtia.__version__}\0".encode(), b"\0" + b"9" * len(torch_mtia.__version__) + b"\0", "torch_mtia 9+"),
        (f"\0{torch.__version__.partition('+')[0]}\0".encode(), b"\x002.99.0\0", r"PyTorch 2\.99\.0"),
        (f"\0{DRIVER}\0".encode(), b"\0" + b"x" * len(DRIVER) + b"\0", f"the driver x+, and this is {DRIVER}"),
    ],
    ids=["version", "torch", "driver"],
)
def test_a_package_for_something_else_is_refused(
    classifier: Path, tmp_path: Path, old: bytes, new: bytes, message: str
) -> None:
    assert len(old) == len(new)
    other = changed(classifier, tmp_path / "other.pt2", lambda library: library.replace(old, new))
    with pytest.raises(RuntimeError, match=f"was made for .*{message}.*make it again here"):
        load(other)


def test_a_package_of_another_interface_is_refused(classifier: Path, tmp_path: Path) -> None:
    source, library = tmp_path / "info.c", tmp_path / "info.so"
    source.write_text(
        'struct { int version; char *torch_mtia, *torch, *driver; } torch_mtia_package = {999, "", "", ""};'
    )
    subprocess.run([get_cxx_compiler(), "-x", "c", "-shared", "-fPIC", source, "-o", library], check=True, timeout=60)
    other = changed(classifier, tmp_path / "other.pt2", lambda _: library.read_bytes())
    with pytest.raises(RuntimeError, match="was made for torch_mtia's packages of version 999, and this is "):
        load(other)


@pytest.mark.parametrize("names", ["0, 0, 0", '"{version}", 0, 0', '"{version}", "{torch}", 0'])
def test_a_package_that_names_nothing_is_refused(classifier: Path, tmp_path: Path, names: str) -> None:
    source, library = tmp_path / "info.c", tmp_path / "info.so"
    names = names.format(version=torch_mtia.__version__, torch=torch.__version__.partition("+")[0])
    source.write_text(
        f"struct {{ int version; char *torch_mtia, *torch, *driver; }} torch_mtia_package = {{1, {names}}};"
    )
    subprocess.run([get_cxx_compiler(), "-x", "c", "-shared", "-fPIC", source, "-o", library], check=True, timeout=60)
    other = changed(classifier, tmp_path / "other.pt2", lambda _: library.read_bytes())
    with pytest.raises(RuntimeError, match="nothing that it names"):
        load(other)


def test_an_index_of_a_package_that_is_no_device_is_refused(run_script: RunScript) -> None:
    """A number that has the last byte of a device's index is not that device."""
    run_script(
        """
        import ctypes, pathlib, torch, torch_mtia

        torch.mtia.init()
        [library] = pathlib.Path(torch_mtia.__file__).parent.glob("**/libtorch_mtia.so")
        shim = ctypes.CDLL(library)
        out = ctypes.c_void_p()
        for index in (256, 2**31 - 256, -300):
            calls = [shim.aoti_torch_mtia_set_device(index)]
            if index > 0:  # negative: the current device
                calls.append(shim.aoti_torch_create_mtia_guard(index, ctypes.byref(out)))
                calls.append(shim.aoti_torch_get_current_mtia_stream(index, ctypes.byref(out)))
                calls.append(shim.aoti_torch_create_mtia_stream_guard(None, index, ctypes.byref(out)))
            assert all(status != 0 for status in calls), (index, calls)
        assert shim.aoti_torch_mtia_set_device(0) == 0
        """
    ).output()


def for_another_processor(image: bytes) -> bytes:
    """With every feature there could be among those that it needs: see mtia_kernel_image_header."""
    start = re.escape(abi.KERNEL_IMAGE_MAGIC.to_bytes(8, sys.byteorder)) + b".{16}"
    return re.sub(b"(" + start + b").{8}", lambda found: found[1] + b"\xff" * 8, image, flags=re.DOTALL)


def test_a_package_for_another_processor_is_refused(classifier: Path, tmp_path: Path) -> None:
    other = changed(classifier, tmp_path / "other.pt2", for_another_processor, ".cubin")
    with pytest.raises(RuntimeError, match="processor"):
        load(other)


@pytest.mark.wide
def test_embedded_kernels_for_another_processor_are_refused_at_the_first_launch(embedded: Path, tmp_path: Path) -> None:
    model = load(changed(embedded, tmp_path / "other.pt2", for_another_processor))
    with pytest.raises(RuntimeError, match="processor"):
        model(inputs(2))


@pytest.mark.parametrize("option", ["package_cpp_only", "emit_multi_arch_kernel"])
def test_kernels_as_text_are_refused(make_package: MakePackage, option: str) -> None:
    with pytest.raises(InductorError, match="Missing kernel assembly code"):
        make_package(nn.SiLU(), torch.ones(8, device="mtia"), **{f"aot_inductor.{option}": True})


@triton.jit  # type: ignore[untyped-decorator]
def from_descriptor(descriptor, y, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    tl.store(y + tl.arange(0, BLOCK), descriptor.load([0]))


def test_descriptors_made_on_the_host_are_refused(make_package: MakePackage, monkeypatch: pytest.MonkeyPatch) -> None:
    class FromHost(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y = torch.empty_like(x)
            from_descriptor[(1,)](TensorDescriptor.from_tensor(x, [16]), y, BLOCK=16)
            return y

    x = torch.ones(16, device="mtia")
    with pytest.raises(RuntimeError, match=r"Cannot access data pointer|Raw Triton kernel calls are not supported"):
        make_package(FromHost(), x)
    with pytest.raises(Unsupported):
        make_package(FromHost(), x, strict=True)
    monkeypatch.setattr(_triton, "has_triton_tensor_descriptor_host_tma", lambda: True)
    torch._dynamo.reset()
    with pytest.raises(InductorError, match="NotImplementedError: a kernel with tensor descriptors"):
        make_package(FromHost(), x, strict=True)
