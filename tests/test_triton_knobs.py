"""What every knob of triton.knobs does on mtia: docs/triton.md has them in a table."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
import triton
import triton.language as tl
from triton import knobs

from torch_mtia.triton.architecture import usable

if TYPE_CHECKING:
    from tests.conftest import RunScript

PAGE = Path(__file__).parent.parent / "docs" / "triton.md"
GROUPS = ("build", "redis", "cache", "compilation", "autotuning", "runtime", "language", "nvidia", "amd", "proton")
STAGES = ("ttir", "plan", "llir", "asm", "mtiabin")


@triton.jit
def kernel(x, y, z, N: tl.constexpr):
    i = tl.arange(0, N)
    a = tl.load(x + i)
    tl.store(z + i, a * tl.load(y + i) + a)


@pytest.fixture(autouse=True)
def folders(tmp_path: Path) -> Iterator[Path]:
    """Knobs are as before after a test, and no kernel is in the cache before it."""
    with contextlib.ExitStack() as scopes:
        for group in GROUPS:
            scopes.enter_context(getattr(knobs, group).scope())
        knobs.cache.dir = str(tmp_path / "cache")
        knobs.cache.dump_dir = str(tmp_path / "dump")
        knobs.cache.override_dir = str(tmp_path / "override")
        yield tmp_path


X, Y = torch.randn(64), torch.randn(64)


def launch(function: Any = kernel, **options: Any) -> tuple[Any, torch.Tensor]:
    """Compiles anew, for all that this process knows."""
    x, y, z = X.to("mtia"), Y.to("mtia"), torch.empty(64, device="mtia")
    compiled = triton.JITFunction(function.fn)[(1,)](x, y, z, N=64, **options)
    return compiled, z.cpu()


def files(folder: Path, *, of: str = "kernel") -> set[str]:
    return {path.suffix[1:] for path in folder.rglob(f"{of}.*")}


def knobs_of(group: str) -> set[str]:
    type_ = type(getattr(knobs, group))
    names = {name for name in (*vars(type_), *type_.__annotations__) if not name.startswith("_")}
    return {name for name in names if not callable(getattr(type_, name, None)) or "hook" in name}


@pytest.mark.parametrize("group", GROUPS)
def test_every_knob_is_in_the_table(group: str) -> None:
    named = set(
        re.findall(r"`(\w+\.[\w*]+)`", PAGE.read_text().partition("## Triton's knobs")[2].partition("\n## ")[0])
    )
    properties = {"backend_dirs"}  # made of others
    assert f"{group}.*" in named or {f"{group}.{name}" for name in knobs_of(group) - properties} <= named


def test_the_groups_are_all() -> None:
    assert {name for name, value in vars(knobs).items() if isinstance(value, knobs.base_knobs)} == set(GROUPS)


def test_only_the_binary_may_be_stored(folders: Path) -> None:
    knobs.compilation.store_binary_only = True
    for _ in range(2):  # compiled, and from the cache
        compiled, z = launch()
        assert set(compiled.asm) == {"source", "mtiabin"}
        assert files(folders / "cache") == {"source", "mtiabin", "json"}
        torch.testing.assert_close(z, X * Y + X)


def test_products_and_sums_are_rounded_once_or_twice() -> None:
    twice = X * Y + X
    for fused in (False, True):
        knobs.language.default_fp_fusion = fused
        compiled, z = launch()
        assert compiled.metadata.enable_fp_fusion is fused
        assert fused or torch.equal(z, twice)
        compiled, z = launch(enable_fp_fusion=False)
        assert torch.equal(z, twice)


@pytest.mark.skipif(
    not hasattr(knobs.language, "force_disable_fp_fusion"), reason="this Triton is older than 3.9, which has it"
)
def test_a_setting_overrules_kernels_that_round_once() -> None:
    knobs.language.force_disable_fp_fusion = True
    compiled, z = launch(enable_fp_fusion=True)
    assert compiled.metadata.enable_fp_fusion is False
    assert torch.equal(z, X * Y + X)


def test_a_hook_may_replace_stages() -> None:
    stages_seen: list[str] = []

    def hook(*arguments: Any) -> Any:
        if not arguments:
            return "key", "hash"
        _backend, stages, _options, _language, _capability = arguments
        stages_seen.extend(stages)
        make = stages["llir"]
        stages["llir"] = lambda source, metadata: make(source, metadata) + "\n; seen\n"
        return None

    knobs.runtime.add_stages_inspection_hook = hook
    compiled, _ = launch()
    assert tuple(stages_seen) == STAGES
    assert "; seen" in compiled.asm["llir"]
    knobs.runtime.add_stages_inspection_hook = None
    compiled, _ = launch()
    assert "; seen" not in compiled.asm["llir"]


@pytest.mark.parametrize(
    ("mode", "instead"),
    [
        ("consan", "--checks kernels"),
        ("gsan", "--checks kernels"),
        ("iisan", "--checks memory"),
        ("fpsan", "not available"),
        ("consan,fpsan", "--checks kernels.*not available"),
        ("nonsense", "nothing is known of 'nonsense'"),
    ],
)
def test_an_instrumentation_that_is_not_there_is_an_error(mode: str, instead: str) -> None:
    knobs.compilation.instrumentation_mode = mode
    with pytest.raises(RuntimeError, match=f"TRITON_INSTRUMENTATION_MODE={mode} is for GPUs.*{instead}"):
        launch()


def test_an_address_sanitizer_that_is_not_there_is_an_error() -> None:
    knobs.compilation.enable_asan = True
    with pytest.raises(RuntimeError, match=r"TRITON_ENABLE_ASAN.*TORCH_MTIA_CHECK_BOUNDS=1"):
        launch()


def test_stages_are_dumped_and_overridden(folders: Path) -> None:
    knobs.compilation.dump_ir = True
    launch()
    assert files(folders / "dump") == set(STAGES)
    (dumped,) = (folders / "dump").rglob("kernel.llir")
    text = dumped.read_text()
    place = folders / "override" / dumped.parent.name
    place.mkdir(parents=True)
    knobs.compilation.dump_ir, knobs.compilation.override = False, True
    knobs.compilation.always_compile = True
    (place / "kernel.llir").write_text(f"{text}\n; overridden\n")
    compiled, z = launch()
    assert "; overridden" in compiled.asm["llir"]
    torch.testing.assert_close(z, X * Y + X)


def test_what_is_cached_is_compiled_again_on_request() -> None:
    hits: list[bool] = []
    knobs.compilation.listener = lambda **what: hits.append(what["cache_hit"])
    launch()
    launch()
    knobs.compilation.always_compile = True
    launch()
    assert hits == [False, True, False]


def test_a_listener_is_told_the_time_of_each_stage() -> None:
    times: list[Any] = []
    knobs.compilation.listener = lambda **what: times.append(what["times"])
    launch()
    assert tuple(stage for stage, _ in times[0].lowering_stages) == STAGES


def test_locations_may_be_those_of_ttir(capfd: pytest.CaptureFixture[str]) -> None:
    knobs.compilation.use_ir_loc = "ttir"
    _, z = launch()
    assert "Creating new locations for" in capfd.readouterr().out
    torch.testing.assert_close(z, X * Y + X)


GLOBAL = 3.0


@triton.jit
def kernel_with_a_global(x, y, z, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(z + i, tl.load(x + i) * GLOBAL)


def test_globals_are_allowed_on_request() -> None:
    with pytest.raises(triton.CompilationError, match="global variable"):
        launch(kernel_with_a_global)
    knobs.compilation.allow_non_constexpr_globals = True
    _, z = launch(kernel_with_a_global)
    assert torch.equal(z, X * 3)


@triton.jit
def kernel_with_an_error(x, y, z, N: tl.constexpr):
    tl.store(z + tl.arange(0, N), tl.nonsense(x))


def test_the_front_end_shows_its_own_errors_on_request() -> None:
    with pytest.raises(triton.CompilationError):
        launch(kernel_with_an_error)
    knobs.compilation.front_end_debugging = True
    with pytest.raises(AttributeError, match="nonsense"):
        launch(kernel_with_an_error)


def test_the_architecture_is_overridden() -> None:
    lowest = usable()[-1]
    knobs.runtime.override_arch = lowest
    compiled = triton.JITFunction(kernel.fn).warmup(*[torch.float32] * 3, N=64, grid=(1,))
    assert compiled.metadata.arch == lowest
    assert "ymm" not in compiled.asm["asm"]
    knobs.runtime.override_arch = "sm_90"
    with pytest.raises(ValueError, match="'sm_90' is not known; valid: "):
        launch()


@triton.jit
def kernel_with_an_assertion(x, y, z, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.device_assert(tl.load(x + i) > 100, "too small")
    tl.store(z + i, tl.load(x + i))


def test_debugging_checks_assertions() -> None:
    launch(kernel_with_an_assertion)
    knobs.runtime.debug = True
    with pytest.raises(RuntimeError, match="too small"):
        launch(kernel_with_an_assertion)


def test_hooks_of_compilation_and_loading_are_called() -> None:
    seen: list[str] = []
    knobs.runtime.jit_cache_hook = lambda **_: seen.append("cache")
    knobs.runtime.jit_post_compile_hook = lambda **_: seen.append("compiled")
    start, end = (lambda *_: seen.append("loading")), (lambda *_: seen.append("loaded"))
    enter, leave = (lambda *_: seen.append("enter")), (lambda *_: seen.append("exit"))
    chains = {
        "kernel_load_start_hook": start, "kernel_load_end_hook": end,
        "launch_enter_hook": enter, "launch_exit_hook": leave,
    }  # fmt: skip
    for name, function in chains.items():
        getattr(knobs.runtime, name).add(function)
    try:
        launch()
    finally:
        for name, function in chains.items():
            getattr(knobs.runtime, name).remove(function)
    assert seen == ["cache", "compiled", "loading", "loaded", "enter", "exit"]


@triton.jit
def tuned_kernel(x, size, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(x + i, i.to(tl.float32), i < size)


def test_an_autotuners_choice_is_kept_on_disk(folders: Path, capsys: pytest.CaptureFixture[str]) -> None:
    knobs.autotuning.cache = knobs.autotuning.print = True
    configs = [triton.Config({"N": 32}), triton.Config({"N": 64})]
    measured: list[int] = []
    for _ in range(2):
        tuned = triton.autotune(configs, key=["size"])(triton.JITFunction(tuned_kernel.fn))
        tuned[(1,)](torch.empty(64, device="mtia"), 64)
        assert len(list((folders / "cache").rglob("tuned_kernel.autotune.json"))) == 1
        printed = capsys.readouterr().out
        measured.append(printed.count("Autotuning kernel"))
    assert measured == [2, 0]


@triton.jit
def product_kernel(x, y, z, N: tl.constexpr):
    i = tl.arange(0, N)
    at = i[:, None] * N + i[None, :]
    tl.store(z + at, tl.dot(tl.load(x + at), tl.load(y + at)))


@pytest.mark.parametrize("precision", ["tf32", "tf32x3", "ieee", "bf16x3"])
def test_every_precision_of_products_is_full(precision: str) -> None:
    knobs.language.fp32_default = precision
    x, y = torch.randn(32, 32), torch.randn(32, 32)
    z = torch.empty(32, 32, device="mtia")
    triton.JITFunction(product_kernel.fn)[(1,)](x.to("mtia"), y.to("mtia"), z, N=32)
    torch.testing.assert_close(z.cpu(), x @ y, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("group", ["build", "nvidia", "amd", "proton", "compilation"])
def test_what_is_for_gpus_changes_nothing(group: str) -> None:
    before, _ = launch()
    of = getattr(knobs, group)
    without_effect = {"disable_line_info", "dump_ir_extract_di_local_variables"}
    for name, descriptor in of.knob_descriptors.items():
        if group == "compilation" and name not in without_effect:
            continue
        if type(descriptor) in (knobs.env_bool, knobs.env_opt_bool):
            setattr(of, name, not descriptor.get())
        elif type(descriptor) in (knobs.env_str, knobs.env_opt_str):
            setattr(of, name, "/nonsense")
    knobs.compilation.always_compile = True
    after, z = launch()
    assert after.asm["asm"] == before.asm["asm"]
    torch.testing.assert_close(z, X * Y + X)


class CountingManager:
    """In place of Triton's own, which does the work."""

    puts = 0

    def __new__(cls, *arguments: Any, **options: Any) -> Any:
        from triton.runtime.cache import FileCacheManager

        class Manager(FileCacheManager):  # type: ignore[misc]
            def put(self, *arguments: Any, **options: Any) -> Any:
                CountingManager.puts += 1
                return super().put(*arguments, **options)

        return Manager(*arguments, **options)


def test_the_manager_of_the_cache_may_be_another() -> None:
    knobs.cache.manager_class = CountingManager
    launch()
    assert CountingManager.puts > len(STAGES)


def test_the_interpreter_runs_kernels_of_the_cpu(run_script: RunScript, tmp_path: Path) -> None:
    (tmp_path / "interpreted.py").write_text("""
import torch, triton, triton.language as tl
@triton.jit
def kernel(x):
    tl.store(x, tl.load(x) + 1)
x = torch.zeros(1)
kernel[(1,)](x)
print(x.item(), type(kernel).__name__)
""")
    assert run_script("import interpreted", TRITON_INTERPRET="1").output() == "1.0 InterpretedFunction\n"


def test_a_home_that_cannot_be_written_is_replaced(run_script: RunScript, tmp_path: Path) -> None:
    script = """
        import os
        os.environ.pop("TRITON_CACHE_DIR", None)
        import torch
        import triton
        import triton.language as tl

        @triton.jit
        def double(x, BLOCK: tl.constexpr):
            at = tl.arange(0, BLOCK)
            tl.store(x + at, tl.load(x + at) * 2)

        x = torch.ones(32, device="mtia")
        double[(1,)](x, BLOCK=32)
        print(x.sum().item(), triton.knobs.cache.dir)
    """
    printed = run_script(script, HOME="/proc/self", TMPDIR=str(tmp_path)).output().split()
    assert printed == ["64.0", str(tmp_path / f"triton_{os.getuid()}" / ".triton" / "cache")]
