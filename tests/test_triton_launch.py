"""Launching Triton kernels: what they take, where and when they run, and how they fail."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
import torch
import triton
import triton.language as tl
from torch._subclasses.fake_tensor import FakeTensorMode
from triton.tools.tensor_descriptor import TensorDescriptor

from torch_mtia.triton.driver import MTIADriver

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import RunScript


@triton.jit
def store_kernel(out, value, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + offsets, tl.zeros((BLOCK,), out.dtype.element_ty) + value)


@triton.jit
def add_kernel(x, y, out, size, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < size
    tl.store(out + offsets, tl.load(x + offsets, mask) + tl.load(y + offsets, mask), mask)


@triton.jit
def program_ids_kernel(out):
    x, y, z = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    tl.store(out + x + tl.num_programs(0) * (y + tl.num_programs(1) * z), x + 10 * y + 100 * z)


@triton.jit
def nothing_kernel():
    pass


@triton.jit
def assert_kernel(x, limit):
    tl.device_assert(tl.load(x + tl.program_id(0)) < limit, "value too large")


def launch_arguments(kernel: Any, *args: Any, grid: tuple[int, ...] = (1,), **constants: Any) -> Any:
    """The compiled kernel, and a function that launches it through its launcher with other arguments."""
    compiled = kernel.warmup(*args, grid=grid, **constants)
    compiled._init_handles()
    return compiled


# Arguments ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        (torch.bool, True),
        (torch.int8, -7),
        (torch.uint8, 250),
        (torch.int16, -30000),
        (torch.int32, 2**31 - 1),
        (torch.int32, -(2**31)),
        (torch.int64, 2**62 + 1),
        (torch.int64, -(2**62) - 1),
        (torch.float16, 0.1),
        (torch.bfloat16, 0.1),
        (torch.float32, 0.1),
        (torch.float64, 0.5),
        (torch.float32, float("inf")),
    ],
    ids=str,
)
def test_scalars_arrive(device: torch.device, dtype: torch.dtype, value: Any) -> None:
    out = torch.zeros(16, dtype=dtype, device=device)
    store_kernel[(1,)](out, value, BLOCK=16)
    assert torch.equal(out.cpu(), torch.full((16,), value, dtype=dtype))


def test_annotated_scalars_are_checked_against_their_width(device: torch.device) -> None:
    @triton.jit
    def kernel(out, value: tl.int8):
        tl.store(out, value.to(tl.int32))

    out = torch.zeros(1, dtype=torch.int32, device=device)
    kernel[(1,)](out, -100)
    assert out.item() == -100
    with pytest.raises(OverflowError, match=r"argument 'value': 200 does not fit a signed integer of 8 bits"):
        kernel[(1,)](out, 200)


def test_none_is_a_constant(device: torch.device) -> None:
    @triton.jit
    def kernel(out, maybe):
        tl.store(out, 1 if maybe is None else 2)

    out = torch.zeros(1, dtype=torch.int32, device=device)
    kernel[(1,)](out, None)
    assert out.item() == 1
    kernel[(1,)](out, out)
    assert out.item() == 2


def test_tuples_are_flattened(device: torch.device) -> None:
    @triton.jit
    def kernel(pair, out):
        tl.store(out, tl.load(pair[0]) + pair[1][0] * pair[1][1])

    x = torch.tensor([5], dtype=torch.int32, device=device)
    out = torch.zeros_like(x)
    kernel[(1,)]((x, (7, 11)), out)
    assert out.item() == 5 + 77


def test_a_tensor_seen_as_another_type(device: torch.device) -> None:
    bits = torch.tensor([0x3F800000] * 4, dtype=torch.int32, device=device)
    out = torch.zeros(4, device=device)
    add_kernel[(1,)](triton.reinterpret(bits, tl.float32), out, out, 4, BLOCK=4)
    assert out.tolist() == [1.0] * 4


def test_tensor_descriptors_made_on_the_host(device: torch.device) -> None:
    @triton.jit
    def kernel(source, target):
        target.store([0, 0], source.load([2, 4]) * 2)

    x = torch.arange(16 * 32, dtype=torch.float32, device=device).view(16, 32)
    out = torch.zeros(8, 8, device=device)
    kernel[(1,)](TensorDescriptor.from_tensor(x, [8, 8]), TensorDescriptor.from_tensor(out, [8, 8]))
    assert torch.equal(out, x[2:10, 4:12] * 2)


def test_a_cpu_tensor_is_refused(device: torch.device) -> None:
    x = torch.zeros(4, device=device)
    with pytest.raises(ValueError, match=re.escape("argument 'y': Pointer argument cannot be accessed from Triton")):
        add_kernel[(1,)](x, torch.zeros(4), x, 4, BLOCK=4)


@pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")
def test_a_tensor_without_memory_is_refused(device: torch.device) -> None:
    x = torch.zeros(4, device=device)
    freed = torch.zeros(4, device=device)
    freed.untyped_storage().resize_(0)
    with FakeTensorMode():
        fake = torch.zeros(4, device=device)
    for y in (freed, fake):
        with pytest.raises(ValueError, match=r"argument 'y': .* a tensor without memory, as fake ones are"):
            add_kernel[(1,)](x, y, x, 4, BLOCK=4)


@triton.jit
def constants_kernel(out, ONE: tl.constexpr, value, pair, maybe, single, TWO: tl.constexpr, THREE: tl.constexpr = 3):
    number = value + pair[0] * 10 + ONE * 100 + TWO * 1000 + THREE * 10000
    if maybe is not None:
        number += tl.load(maybe)
    tl.store(out, number * single)


def test_constants_at_the_end_of_a_direct_launch_may_be_left_out(device: torch.device) -> None:
    """As with Triton's launcher for CUDA, which does not look at the values of constants, nor at more values."""
    out = torch.zeros(1, dtype=torch.int32, device=device)
    compiled = constants_kernel.warmup(out, 1, 5, (6, 1), None, 1, 2, grid=(1,))
    for arguments in (
        (out, 1, 5, (6, 1), None, 1, 2, 3),
        (out, 1, 5, (6, 1), None, 1, 2),
        (out, 1, 5, (6, 1), None, 1),
        (out, 1, 5, (6, 1)),
        (out, None, 5, [6, 1]),
        (out, "any", 5, (6,)),
        (out, 1, 5, (6, 1, 9), None, 1, 2, 3, 4),
    ):
        out.zero_()
        compiled[(1, 1, 1)](*arguments)
        assert out.item() == 5 + 60 + 100 + 2000 + 30000


def test_values_that_a_kernel_reads_cannot_be_left_out(device: torch.device) -> None:
    out = torch.zeros(1, dtype=torch.int32, device=device)
    compiled = constants_kernel.warmup(out, 1, 5, (6, 7), None, 1, 2, grid=(1,))[(1, 1, 1)]
    with pytest.raises(TypeError, match=r"argument 'pair' is missing: it is number 4 by position, and 3 were given"):
        compiled(out, 1, 5)
    with pytest.raises(TypeError, match=r"argument 'pair\[1\]' is missing: it is number 2 by position, and 1 were"):
        compiled(out, 1, 5, (6,))
    with pytest.raises(TypeError, match=r"argument 'pair': expected a tuple of 2 values, got 6"):
        compiled(out, 1, 5, 6)
    with pytest.raises(TypeError, match=r"argument 'out' is missing: it is number 1 by position, and 0 were given"):
        compiled()
    with pytest.raises(TypeError, match="unexpected keyword"):
        compiled(out, 1, value=5)


def test_something_else_than_a_number_is_refused(device: torch.device) -> None:
    x = torch.zeros(4, device=device)
    compiled = launch_arguments(add_kernel, x, x, x, 4, BLOCK=4)
    with pytest.raises(TypeError, match=r"argument 'size': 1.5 of type float is not a number"):
        compiled[(1, 1, 1)](x, x, x, 1.5, 4)
    with pytest.raises(TypeError, match=r"argument 'x': a pointer is a tensor"):
        compiled[(1, 1, 1)]("x", x, x, 4, 4)


# Grids ----------------------------------------------------------------------------------------------------------------


def test_programs_know_their_place_in_the_grid(device: torch.device) -> None:
    out = torch.full((2, 3, 4), -1, dtype=torch.int32, device=device)
    program_ids_kernel[(4, 3, 2)](out)
    expected = [[[x + 10 * y + 100 * z for x in range(4)] for y in range(3)] for z in range(2)]
    assert out.tolist() == expected


@pytest.mark.parametrize("grid", [(0,), (3, 0), (3, 3, 0)], ids=str)
def test_an_empty_grid_runs_nothing(device: torch.device, grid: tuple[int, ...]) -> None:
    out = torch.full((64,), -1, dtype=torch.int32, device=device)
    program_ids_kernel[grid](out)
    assert (out == -1).all()


def test_a_kernel_without_arguments() -> None:
    assert nothing_kernel[(10,)]().name == "nothing_kernel"
    torch.mtia.synchronize()


def test_a_grid_that_is_too_large_is_refused(device: torch.device) -> None:
    out = torch.zeros(1, dtype=torch.int32, device=device)
    with pytest.raises(ValueError, match=r"grid's size 2147483648 in dimension 0"):
        program_ids_kernel[(2**31,)](out)


# Streams --------------------------------------------------------------------------------------------------------------


def test_launches_are_ordered_with_operators_on_the_current_stream(device: torch.device) -> None:
    x = torch.zeros(1 << 20, device=device)
    for step in range(20):
        x += 1
        add_kernel[(x.numel() // 1024,)](x, x, x, x.numel(), BLOCK=1024)
        assert step >= 0
    assert torch.equal(x.cpu(), torch.full((1 << 20,), float(2 * (2**20 - 1))))


def test_files_may_replace_ttir_and_llvm_ir(device: torch.device, tmp_path: Path) -> None:
    x = torch.ones(64, device=device)
    stages = add_kernel[(1,)](x, x, torch.empty_like(x), 64, BLOCK=64).asm
    for stage in ("ttir", "plan", "llir", "asm"):
        file = tmp_path / f"replaced.{stage}"
        file.write_text(stages[stage].replace("addf", "subf").replace("fadd", "fsub"))
        z = torch.ones_like(x)
        if stage != "asm":
            add_kernel[(1,)](x, x, z, 64, BLOCK=64, ir_override=str(file))
            assert z.any() == (stage == "plan")  # in which both are fused into the store
        else:
            with pytest.raises(ValueError, match=r"only to be read: override the stage before"):
                add_kernel[(1,)](x, x, z, 64, BLOCK=64, ir_override=str(file))


def test_launches_go_to_the_current_stream(device: torch.device) -> None:
    stream = torch.mtia.Stream()
    gate = torch.mtia.Event()
    x = torch.zeros(1 << 20, device=device)
    y = torch.ones_like(x)
    stream.wait_stream(torch.mtia.current_stream())
    with torch.mtia.stream(stream):
        for _ in range(50):
            y = torch.sin(y)
        expected = y + 1
        add_kernel[(x.numel() // 1024,)](y, torch.ones_like(y), x, x.numel(), BLOCK=1024)
        gate.record()
    gate.synchronize()
    assert torch.equal(x, expected)


def test_a_large_launch_returns_before_it_is_done(device: torch.device) -> None:
    x = torch.zeros(1 << 24, device=device)
    add_kernel[(x.numel() // 1024,)](x, x, x, x.numel(), BLOCK=1024)
    torch.mtia.synchronize()
    stream = torch.mtia.current_stream()
    for _ in range(20):
        add_kernel[(x.numel() // 1024,)](x, x, x, x.numel(), BLOCK=1024)
    assert not stream.query()
    torch.mtia.synchronize()
    assert stream.query()


def test_kernels_run_on_every_device(run_script: RunScript) -> None:
    script = """
        import torch, triton, triton.language as tl

        @triton.jit
        def kernel(out):
            tl.store(out + tl.program_id(0), tl.program_id(0))

        for index in (1, 0, 2):
            with torch.mtia.device(index):
                out = torch.full((4,), -1, dtype=torch.int32, device="mtia")
                kernel[(4,)](out)
                print(out.device, out.tolist())
        try:
            kernel[(4,)](torch.zeros(4, dtype=torch.int32, device="mtia:2"))
        except ValueError as error:
            print(error)
    """
    output = run_script(script, TORCH_MTIA_DEVICES="3").output().splitlines()
    assert output[:3] == [f"mtia:{index} [0, 1, 2, 3]" for index in (1, 0, 2)]
    assert output[3].startswith("argument 'out': Pointer argument cannot be accessed from Triton")
    assert output[3].endswith("it is a tensor on mtia:2, and the kernel runs on mtia:0")


@pytest.mark.in_tree("another name takes the place of PrivateUse1")
def test_kernels_run_beside_another_accelerator(run_script: RunScript, tmp_path: Path) -> None:
    """PyTorch's `torch.accelerator` is then that one, which is PrivateUse1."""
    (tmp_path / "launches.py").write_text("""
import torch, triton, triton.language as tl
torch.utils.rename_privateuse1_backend("vendor")

@triton.jit
def kernel(x):
    tl.store(x + tl.arange(0, 16), 7.0)

for index in (1, 0):
    x = torch.zeros(16, device=f"mtia:{index}")
    stream = torch.Stream(f"mtia:{index}")
    with torch.mtia.device(index), torch.mtia.stream(stream):
        kernel[(1,)](x)
    stream.synchronize()
    print(x.sum().item(), x.device, triton.runtime.driver.active.get_active_torch_device())
""")
    printed = run_script("import launches", TORCH_MTIA_DEVICES="2").output()
    assert printed == "112.0 mtia:1 mtia:0\n112.0 mtia:0 mtia:0\n"


# Errors ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [4, 1 << 16])
def test_an_assertion_is_raised_at_the_next_synchronization(device: torch.device, size: int) -> None:
    x = torch.zeros(size, dtype=torch.int32, device=device)
    x[3] = 9
    assert_kernel[(size,)](x, 5, debug=True)
    with pytest.raises(RuntimeError, match=r"assert_kernel: .*value too large.*program \(3, 0, 0\), line \d+"):
        torch.mtia.synchronize()
    store_kernel[(1,)](x, 7, BLOCK=4)  # the stream is usable
    assert x[0].item() == 7


@pytest.mark.wide
def test_launch_blocking_raises_an_assertion_at_the_launch(run_script: RunScript) -> None:
    script = """
        import torch, triton, triton.language as tl

        @triton.jit
        def kernel(x):
            tl.device_assert(tl.load(x) < 0, "not negative")

        x = torch.zeros(4, dtype=torch.int32, device="mtia")
        try:
            kernel[(1,)](x, debug=True)
        except RuntimeError as error:
            print("raised:", error)
    """
    assert "not negative" in run_script(script, TORCH_MTIA_LAUNCH_BLOCKING="1").output()


class OtherDriver(MTIADriver):
    """Stands for a GPU's: its launcher is another one, and takes anything."""

    launcher_cls = staticmethod(lambda _source, _metadata: lambda *_arguments: None)  # type: ignore[assignment]


def test_another_driver_refuses_tensors_of_mtia(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    @triton.jit
    def kernel(x):  # not loaded by another driver yet
        tl.store(x, 1.0)

    monkeypatch.setattr(triton.runtime.driver, "_active", OtherDriver())
    with pytest.raises(ValueError, match=r"a tensor of mtia:0 .* torch_mtia.triton.activate\(\)"):
        kernel[(1,)](torch.zeros(1, device=device))


def test_launches_of_another_driver_are_its_own_until_the_device_is_in_use(run_script: RunScript) -> None:
    run_script(
        """
        import torch
        from torch_mtia.triton.launch import refusing_tensors_of_mtia
        launch = lambda *arguments: None
        assert refusing_tensors_of_mtia(launch) is launch
        torch.zeros(1, device="mtia")
        assert refusing_tensors_of_mtia(launch) is not launch
        """,
    ).output()


def test_an_unloaded_kernel_is_refused(device: torch.device) -> None:
    x = torch.zeros(4, device=device)
    compiled = launch_arguments(add_kernel, x, x, x, 3, BLOCK=8)
    compiled.module.unload()
    with pytest.raises(RuntimeError, match="was unloaded"):
        compiled[(1, 1, 1)](x, x, x, 3, 8)


def test_a_handle_that_is_no_stream_is_refused(device: torch.device) -> None:
    x = torch.zeros(4, device=device)
    compiled = launch_arguments(add_kernel, x, x, x, 4, BLOCK=4)
    with pytest.raises(ValueError, match="is not the handle of a stream of mtia:0"):
        compiled[(1, 1, 1)](x, x, x, 4, 4, stream=12345)


def test_bounds_are_checked_on_request(run_script: RunScript) -> None:
    script = """
        import torch, triton, triton.language as tl

        @triton.jit
        def kernel(x, out, N: tl.constexpr):
            offsets = tl.arange(0, N)
            tl.store(out + offsets, tl.load(x + offsets))

        def launch(size):
            x, out = torch.ones(size, device="mtia"), torch.zeros(64, device="mtia")
            freed = torch.ones(1 << 10, device="mtia")
            del freed  # its block is cached, and not live
            kernel[(1,)](x, out, N=64)
            torch.mtia.synchronize()

        launch(64)
        print("inside")
        try:
            launch(63)
        except RuntimeError as error:
            print(error)
    """
    output = run_script(script, TORCH_MTIA_CHECK_BOUNDS="1").output()
    assert output.startswith("inside\n")
    assert re.search(r"kernel: .*argument x.*program \(0, 0, 0\), line \d+", output)


# Processes ------------------------------------------------------------------------------------------------------------

CACHED = """
    import os
    import torch, triton, triton.language as tl
    from torch_mtia.triton.compiler import MTIABackend

    if "FORBID_COMPILING" in os.environ:
        MTIABackend.add_stages = None

    @triton.jit
    def kernel(out):
        tl.store(out + tl.program_id(0), tl.program_id(0) * 3)

    out = torch.zeros(4, dtype=torch.int32, device="mtia")
    kernel[(4,)](out)
    print(out.tolist())
"""


def test_a_cached_kernel_runs_in_a_process_that_never_compiled(run_script: RunScript, tmp_path: Any) -> None:
    script = tmp_path / "cached_kernel.py"  # of one name, which is part of the key
    script.write_text(re.sub("(?m)^    ", "", CACHED))
    run = f"import runpy; runpy.run_path({str(script)!r}, run_name='__main__')"
    cache = str(tmp_path / "cache")
    assert run_script(run, TRITON_CACHE_DIR=cache, FORBID_COMPILING="1").returncode != 0
    assert run_script(run, TRITON_CACHE_DIR=cache).output() == "[0, 3, 6, 9]\n"
    assert run_script(run, TRITON_CACHE_DIR=cache, FORBID_COMPILING="1").output() == "[0, 3, 6, 9]\n"


@pytest.mark.parametrize("forked", [False])  # the process that others are forked from has imported it
def test_importing_torch_does_not_import_triton(run_script: RunScript) -> None:
    script = """
        import sys, torch
        torch.ones(4, device="mtia") + 1
        print(sorted({"triton", "llvmlite"} & set(sys.modules)))
    """
    assert run_script(script).output() == "[]\n"


@pytest.mark.wide
def test_a_spawned_process_launches(run_script: RunScript) -> None:
    script = """
        import multiprocessing
        import torch, triton, triton.language as tl

        @triton.jit
        def kernel(out):
            tl.store(out + tl.program_id(0), tl.program_id(0) * 3)

        def launch():
            out = torch.zeros(4, dtype=torch.int32, device="mtia")
            kernel[(4,)](out)
            print(out.tolist(), flush=True)

        if __name__ == "__main__":
            launch()
            process = multiprocessing.get_context("spawn").Process(target=launch)
            process.start()
            process.join()
    """
    assert run_script(script).output() == "[0, 3, 6, 9]\n" * 2


# Triton's own interfaces ----------------------------------------------------------------------------------------------


def test_launch_hooks_see_each_launch(device: torch.device) -> None:
    seen: list[str] = []
    x = torch.zeros(4, device=device)

    def enter(metadata: Any) -> None:
        seen.append(f"enter {metadata.get()['name']}")

    def leave(metadata: Any) -> None:
        seen.append(f"leave {metadata.get()['name']}")

    triton.knobs.runtime.launch_exit_hook.add(leave)
    try:
        add_kernel[(1,)](x, x, x, 4, BLOCK=4)
        triton.knobs.runtime.launch_enter_hook.add(enter)
        add_kernel[(1,)](x, x, x, 4, BLOCK=4)
    finally:
        triton.knobs.runtime.launch_enter_hook.remove(enter)
        triton.knobs.runtime.launch_exit_hook.remove(leave)
    assert seen == ["leave add_kernel", "enter add_kernel", "leave add_kernel"]


@pytest.mark.in_tree("Triton's backend is called mtia, whatever the device is")
def test_the_driver_names_the_device_and_its_architecture() -> None:
    driver = triton.runtime.driver.active
    assert driver.get_active_torch_device() == torch.device("mtia", 0)
    target = driver.get_current_target()
    assert target.backend == "mtia"
    assert target.arch == torch.mtia.get_device_properties(0)["architecture"]


def test_do_bench_measures(device: torch.device) -> None:
    x = torch.zeros(1 << 20, device=device)
    launch = lambda: add_kernel[(x.numel() // 1024,)](x, x, x, x.numel(), BLOCK=1024)  # noqa: E731
    milliseconds = triton.testing.do_bench(launch, warmup=1, rep=5)
    assert milliseconds > 0


def test_autotune_chooses_a_configuration(device: torch.device) -> None:
    @triton.autotune(configs=[triton.Config({"BLOCK": 64}), triton.Config({"BLOCK": 1024})], key=["size"])
    @triton.jit
    def kernel(x, out, size, BLOCK: tl.constexpr):
        offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(out + offsets, tl.load(x + offsets, offsets < size) * 2, offsets < size)

    x = torch.rand(10_000, device=device)
    out = torch.zeros_like(x)
    kernel[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, out, x.numel())
    assert torch.equal(out, x * 2)
    assert kernel.best_config.kwargs["BLOCK"] in (64, 1024)


@pytest.mark.in_tree("Triton's backend is called mtia, whatever the device is")
@pytest.mark.parametrize(("backend", "active"), [("mtia", True), ("nvidia", False)])
def test_the_environment_chooses_the_backend(monkeypatch: pytest.MonkeyPatch, backend: str, active: bool) -> None:
    from torch_mtia.triton.driver import MTIADriver

    monkeypatch.setenv("TRITON_DEFAULT_BACKEND", backend)
    assert MTIADriver.is_active() is active


def test_a_gpu_that_another_backend_has_found_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    from triton.backends import backends

    import torch_mtia.triton
    from torch_mtia.triton.driver import MTIADriver

    monkeypatch.delenv("TRITON_DEFAULT_BACKEND", raising=False)
    assert MTIADriver.is_active()
    monkeypatch.setattr(backends["nvidia"].driver, "is_active", staticmethod(lambda: True))
    assert not MTIADriver.is_active()
    torch_mtia.triton.activate()
    assert isinstance(triton.runtime.driver.active, MTIADriver)
