"""How generated code launches kernels: by a builtin function, once the configuration of a kernel is chosen."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from types import BuiltinFunctionType, FunctionType
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from torch._inductor import config as inductor_config
from torch._inductor.codecache import PyCodeCache
from torch._inductor.runtime.triton_heuristics import CachingAutotuner
from torch._inductor.utils import fresh_cache
from torch.utils._debug_mode import DebugMode

from tests.compiled import generated
from torch_mtia import _C

Tensor = torch.Tensor


def on_device(*shape: int) -> Tensor:
    return torch.arange(float(torch.Size(shape).numel())).view(shape).to("mtia")


def compiled_kernel(x: Tensor) -> Any:
    """The object that generated code has for a kernel, after a launch."""
    with fresh_cache():
        generated(lambda x: x * 2 + 1, x)
        module = PyCodeCache.modules[-1]
    (kernel,) = (value for name, value in vars(module).items() if name.startswith("triton_poi"))
    return kernel


def stream() -> int:
    return torch._C._mtia_getCurrentRawStream(0)


@pytest.mark.parametrize(("fast", "kind"), [(True, BuiltinFunctionType), (False, FunctionType)])
def test_the_launcher_is_a_builtin_function_unless_that_is_declined(fast: bool, kind: type) -> None:
    x = on_device(7)
    with inductor_config.patch(use_fast_triton_launcher=fast):
        kernel = compiled_kernel(x)
    assert isinstance(kernel._cached_launcher, kind)
    out = torch.zeros_like(x)
    kernel.run(x, out, 7, stream=stream())
    assert torch.equal(out, x * 2 + 1)


def test_kernels_without_a_number_are_launched_at_every_call() -> None:
    """Those of lists, whose sizes are constants, and a program's own whose grid is one."""
    compiled = torch.compile(lambda *tensors: torch._foreach_add(list(tensors), 1.0))
    for seed in range(4):
        tensors = [on_device(70 + i) * seed for i in range(3)]
        for result, tensor in zip(compiled(*tensors), tensors, strict=True):
            assert torch.equal(result, tensor + 1)


def test_a_compiled_optimizer_goes_on() -> None:
    parameters = [torch.nn.Parameter(on_device(70 + i)) for i in range(3)]
    optimizer = torch.optim.SGD(parameters, lr=0.5, momentum=0.5)
    expected = [torch.nn.Parameter(p.detach().cpu().clone()) for p in parameters]
    of_the_cpu = torch.optim.SGD(expected, lr=0.5, momentum=0.5)
    step = torch.compile(optimizer.step)
    for _ in range(4):
        for parameter, other in zip(parameters, expected, strict=True):
            other.grad = other.detach() / 2 + 1
            parameter.grad = other.grad.to("mtia")
        step()
        of_the_cpu.step()
        for parameter, other in zip(parameters, expected, strict=True):
            torch.testing.assert_close(parameter.detach().cpu(), other.detach())


def test_the_grid_follows_the_sizes() -> None:
    """In two threads, which launch one kernel in turns."""
    compiled = torch.compile(lambda x: x * 2 + 1, dynamic=True)
    compiled(on_device(5))

    def check(sizes: list[int]) -> None:
        for size in sizes:
            assert torch.equal(compiled(on_device(size)), on_device(size) * 2 + 1)

    sizes = [3, 5000, 70, 5000, 5000, 300_000, 1, 300_000]
    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(check, order * 10) for order in (sizes, sizes[::-1])]:
            done.result()


class LaunchesBefore:
    """A tensor that launches a kernel when it is asked where it lies, as another thread may in that moment."""

    def __init__(self, tensor: Tensor, launch: Any) -> None:
        self._tensor, self._launch, self.dtype = tensor, launch, tensor.dtype

    def data_ptr(self) -> int:
        self._launch()
        return self._tensor.data_ptr()


def test_a_launch_has_its_own_grid() -> None:
    x = on_device(5000)
    torch.compiler.reset()
    with fresh_cache():
        generated(lambda x: x * 2 + 1, x, options=None, dynamic=True)
        module = PyCodeCache.modules[-1]
    (kernel,) = (value for name, value in vars(module).items() if name.startswith("triton_poi"))
    out = torch.zeros_like(x)

    def launch_a_small_one() -> None:
        kernel.run(x, torch.empty_like(x), 3, stream=stream())

    kernel.run(LaunchesBefore(x, launch_a_small_one), out, 5000, stream=stream())
    assert torch.equal(out, x * 2 + 1)


def test_kernels_of_the_program_with_numbers_of_every_kind() -> None:
    @triton.jit
    def kernel(x, BLOCK: tl.constexpr, scale, out, adds: tl.constexpr, size, shift):
        i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        value = tl.load(x + i, i < size) * scale
        if adds:
            value += shift
        tl.store(out + i, value, i < size)

    def function(x: Tensor, scale: float, shift: int) -> Tensor:
        out = torch.empty_like(x)
        kernel[(triton.cdiv(x.numel(), 16),)](x, 16, scale, out, True, x.numel(), shift)
        return out

    compiled = torch.compile(function, dynamic=True)
    for size, scale, shift in ((20, 0.5, 3), (20, 0.25, 3), (50, 0.25, 1), (20, 0.5, -4)):
        assert torch.equal(compiled(on_device(size), scale, shift), on_device(size) * scale + shift)


def test_hooks_see_launches_while_they_are_there() -> None:
    x = on_device(9)
    kernel = compiled_kernel(x)
    seen: list[str] = []

    def hook(metadata: Any) -> None:
        seen.append(metadata.get()["name"])

    for chain in (triton.knobs.runtime.launch_enter_hook, triton.knobs.runtime.launch_exit_hook):
        chain.add(hook)
        try:
            kernel.run(x, torch.empty_like(x), 9, stream=stream())
        finally:
            chain.remove(hook)
        kernel.run(x, torch.empty_like(x), 9, stream=stream())
    assert len(seen) == 2
    assert all(name.startswith("triton_poi") for name in seen)


def test_the_profiler_and_debug_mode_see_launches() -> None:
    x = on_device(9)
    kernel = compiled_kernel(x)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        kernel.run(x, torch.empty_like(x), 9, stream=stream())
    assert [event.name for event in profile.events() if event.name.startswith("triton_poi")]
    with DebugMode() as mode:
        kernel.run(x, torch.empty_like(x), 9, stream=stream())
    assert "[triton] triton_poi" in mode.debug_string()


def test_a_replacement_of_upstreams_run_sees_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    x = on_device(9)
    compiled = torch.compile(lambda x: x * 2 + 1)
    expected = compiled(x)
    seen: list[object] = []
    upstream: Any = CachingAutotuner.run

    def run(self: CachingAutotuner, *args: Any, **kwargs: Any) -> Any:
        seen.append(self)
        return upstream(self, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(CachingAutotuner, "run", run)
        assert torch.equal(compiled(x), expected)
    assert len(seen) == 1
    assert torch.equal(compiled(x), expected)
    assert len(seen) == 1


def test_a_wrong_call_raises_what_upstream_raises() -> None:
    x = on_device(9)
    kernel = compiled_kernel(x)
    with pytest.raises(TypeError, match=r"launcher\(\) missing 1 required positional argument"):
        kernel.run(x, x, stream=stream())
    with pytest.raises(TypeError, match="stream"):
        kernel.run(x, x, 9)
    with pytest.raises(ValueError, match="is not the handle of a stream of mtia:0"):
        kernel.run(x, x, 9, stream=1)
    with pytest.raises(TypeError, match="unsupported operand"):
        kernel.run(x, x, "nine", stream=stream())


def test_a_kernel_without_programs_is_launched() -> None:
    compiled = torch.compile(lambda x: x * 2, dynamic=True)
    for rows in (3, 0, 4):
        assert compiled(on_device(rows, 2)).shape == (rows, 2)


def test_the_device_is_entered() -> None:
    assert "with DeviceGuard(0):" in generated(lambda x: x + 1, on_device(3))[1]
    with _C.DeviceGuard(0):
        assert torch.mtia.current_device() == 0
    with pytest.raises(RuntimeError, match="does not exist"):
        _C.DeviceGuard(127)
