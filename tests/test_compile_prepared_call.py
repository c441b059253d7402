"""Functions of generated code run as one native call."""

from __future__ import annotations

import copy
import gc
import textwrap
import traceback
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

import pytest
import torch
import triton
from torch._inductor.codecache import PyCodeCache
from torch._inductor.utils import fresh_cache
from torch.nn import functional as F

from torch_mtia import _C, environment
from torch_mtia.backend import device_type
from torch_mtia.inductor.autotuner import MTIAAutotuner
from torch_mtia.inductor.prepared_call import prepare

if TYPE_CHECKING:
    from tests.conftest import RunScript

Tensor = torch.Tensor
guards: Any = torch._C._dynamo.guards

SCOPE = {
    "torch": torch,
    "assert_size_stride": guards.assert_size_stride,
    "copy_if_misaligned": guards.copy_if_misaligned,
    "empty_strided_mtia": _C._empty_strided,
    "reinterpret_tensor": guards._reinterpret_tensor,
    "get_raw_stream": _C._current_raw_stream,
}


def written(directory: Path, body: str, parameters: str = "args") -> Callable[..., Any]:
    """A function of that body, in a file, as generated code is."""
    file = directory / "generated.py"
    file.write_text(f"\n\ndef call({parameters}):\n" + textwrap.indent(textwrap.dedent(body).strip(), "    ") + "\n")
    scope: dict[str, Any] = dict(SCOPE)
    exec(compile(file.read_text(), str(file), "exec"), scope)
    function = scope["call"]
    assert isinstance(function, FunctionType)
    return function


def on_device(*shape: int) -> Tensor:
    return torch.arange(float(torch.Size(shape).numel())).view(shape).to(device_type())


GUARD = "DeviceGuard(0)"

STATEMENTS: dict[str, tuple[str, list[Any]]] = {
    "unpack": ("a, b = args\nargs.clear()\nreturn (b, a, )", [1, "x"]),
    "one value": ("a, = args\nargs.clear()\nreturn (a, a, None, 3, -2, 'x', -1.5, )", [[7]]),
    "nothing": ("args.clear()\nreturn ()", []),
    "expressions": ("a, b = args\nc = a * b + 1\nreturn (c - 1, (c, a), float('inf'), )", [3, 4]),
    "several at once": ("a, b = args\nc, (d, e) = divmod(a, b), (a, b)\nreturn (c, d, e, )", [17, 5]),
    "in place": ("a, b = args\na += b\nassert a > b\nb = a; del a\nreturn (b, )", [17, 5]),
    "attributes": ("a, = args\na.append(1)\na[0] = 5\nreturn (len(a), a[0], )", [[0]]),
    "annotated": ("a, = args\nb: int = a + 1\nreturn (b, )", [4]),
    "written again": ("a, = args\nb = a\ndel a\na = b + 1\nb = a\ndel b\nb = 4\nreturn (a, b, )", [4]),
    "clears a dictionary": ("a, b = args\nargs.clear()\nb.clear()\nreturn (a, len(b), )", [3, {1: 2}]),
    "the rest": ("a, *b = args\nargs.clear()\nreturn (b, a, )", [1, 2, 3]),
    "chained": ("a, b = args\na = c = a if b else b\nreturn (a, c, )", [5, 0]),
    "several lines": ("a, = args\nb = (\n    a +\n\n    1\n)\nc = 'x' \\\n    'y'\nreturn (b, c, )", [5]),
    "large numbers": ("a, = args\nreturn (a, 18446744073709551615, -9223372036854775808, 2**70, )", [5]),
    "shadows": ("torch, = args\nempty_strided_mtia = torch + 1\nreturn (torch, empty_strided_mtia, )", [4]),
}


@pytest.mark.parametrize("case", STATEMENTS, ids=str)
def test_statements_do_what_they_do_in_python(case: str, tmp_path: Path) -> None:
    body, args = STATEMENTS[case]
    plain = written(tmp_path, body)
    prepared = prepare(plain)
    assert type(prepared) is _C.PreparedCall
    given = [copy.deepcopy(args), copy.deepcopy(args)]
    assert prepared(given[0]) == plain(given[1])
    assert given[0] == given[1]


@pytest.mark.parametrize(
    "body",
    [
        "a, = args\nif a: return (a, )\nreturn ()",
        "for a in args:\n    pass\nreturn ()",
        "with torch.no_grad():\n    a, = args\nreturn (a, )",
        "a = [x for x in args]\nreturn (a, )",
        "a = lambda: args\nreturn (a, )",
        "a, = args\nreturn a",
        "a, = args",
        "global b\nb, = args\nreturn (b, )",
        "import math\nreturn (math.pi, )",
        "return (*args, )",
        f"with {GUARD}:\n    with {GUARD}:\n        a = 1\nreturn (a, )",
    ],
    ids=[
        "if",
        "for",
        "with",
        "comprehension",
        "lambda",
        "no tuple",
        "no return",
        "global",
        "import",
        "stars",
        "guards",
    ],
)
def test_what_does_not_run_straight_through_stays_python(body: str, tmp_path: Path) -> None:
    plain = written(tmp_path, body)
    assert prepare(plain) is plain


@pytest.mark.parametrize("parameters", ["args=()", "*args", "args, /", "*, args", "**args"])
def test_parameters_that_are_not_plain_stay_python(parameters: str, tmp_path: Path) -> None:
    plain = written(tmp_path, "return ()", parameters)
    assert prepare(plain) is plain


def test_characters_that_end_lines_elsewhere_do_not_here(tmp_path: Path) -> None:
    body = '# \f \u2028 \x85\na, = args\nb = \'x \u2028\\n\'\nc = """p\n    q"""\nreturn (a, b, c, )'
    plain = written(tmp_path, body)
    prepared = prepare(plain)
    assert type(prepared) is _C.PreparedCall
    assert prepared([1]) == plain([1])


def test_while_launches_block_errors_name_lines_of_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = written(tmp_path, "a, = args\nreturn (a, )")
    blocking = environment.settings()._replace(launch_blocking=True)
    monkeypatch.setattr(environment, "settings", lambda: blocking)
    assert prepare(plain) is plain


def test_prepared_code_may_be_referred_to_weakly(tmp_path: Path) -> None:
    prepared = prepare(written(tmp_path, "return ()"))
    alive = weakref.ref(prepared)
    assert alive() is prepared
    del prepared
    assert alive() is None


def test_a_function_without_a_file_stays_python(tmp_path: Path) -> None:
    plain = written(tmp_path, "a, = args\nreturn (a, )")
    Path(plain.__code__.co_filename).unlink()
    assert prepare(plain) is plain


def test_buffers_views_and_sizes_that_are_numbers(tmp_path: Path) -> None:
    call = prepare(
        written(
            tmp_path,
            """
            s0, a = args
            args.clear()
            assert_size_stride(a, (s0, 4), (4, 1), 'input')
            with DeviceGuard(0):
                pass
                a = copy_if_misaligned(a)
                b = empty_strided_mtia((2 * s0, 4), (4, 1), torch.float64)
                reinterpret_tensor(b, (s0, 4), (4, 1), 4 * s0).copy_(a)
                c = reinterpret_tensor(b, (4, s0), (1, 4), 4 * s0); del b  # reuse
            return (c, reinterpret_tensor(c, (s0, ), (4, ), 1), s0, )
            """,
        )
    )
    a = on_device(6, 4)
    turned, column, size = call([6, a])
    assert torch.equal(turned, a.double().t())
    assert torch.equal(column, a[:, 1].double())
    assert size == 6
    assert turned.untyped_storage().nbytes() == 2 * 6 * 4 * 8


@pytest.mark.parametrize(
    "given", [on_device(4, 6).t(), on_device(6, 3), on_device(24)], ids=["strides", "sizes", "axes"]
)
def test_what_has_another_layout_is_refused_in_upstreams_words(given: Tensor, tmp_path: Path) -> None:
    plain = written(tmp_path, "a, = args\nargs.clear()\nassert_size_stride(a, (6, 4), (4, 1), 'input')\nreturn (a, )")
    errors = []
    for call in (plain, prepare(plain)):
        with pytest.raises(AssertionError) as error:
            call([given])
        errors.append(str(error.value))
    assert errors[0] == errors[1]


def test_empty_tensors_have_any_layout(tmp_path: Path) -> None:
    plain = written(tmp_path, "a, = args\nassert_size_stride(a, (6, 4), (4, 1), 'input')\nreturn (a, )")
    empty = on_device(0, 3)
    assert prepare(plain)([empty])[0] is empty
    assert plain([empty])[0] is empty


def test_misaligned_inputs_are_copied(tmp_path: Path) -> None:
    call = prepare(written(tmp_path, "a, = args\na = copy_if_misaligned(a)\nreturn (a, )"))
    x = on_device(9)
    assert call([x])[0] is x
    (copied,) = call([x[1:]])
    assert torch.equal(copied, x[1:])
    assert copied.data_ptr() % 16 == 0


@pytest.mark.parametrize(
    ("body", "args", "error", "message"),
    [
        ("a, b = args\nreturn (a, )", [1], ValueError, "expected 2 values to unpack, got 1"),
        ("a, = args\nb = a.missing\nreturn (b, )", [1], AttributeError, "missing"),
        ("a, = args\nb = empty_strided_mtia((a, ), (1, ), torch.float32)\nreturn (b, )", ["x"], TypeError, "int"),
        ("a, = args\nb = reinterpret_tensor(a, (1, ), (1, ), 0)\nreturn (b, )", [1], TypeError, "tensor"),
        ("a, = args\ndel a\nb = (a, )\nreturn (b, )", [1], RuntimeError, "no value"),
    ],
    ids=["count", "attribute", "size", "view", "deleted"],
)
def test_errors(body: str, args: list[Any], error: type[Exception], message: str, tmp_path: Path) -> None:
    call = prepare(written(tmp_path, body))
    assert type(call) is _C.PreparedCall
    with pytest.raises(error, match=message):
        call(args)


def test_an_operation_without_its_fields_is_refused() -> None:
    with pytest.raises(IndexError, match="an operation lacks its field 1"):
        _C.PreparedCall(1, 1, (("free",),), ())


def test_a_device_that_there_is_none_of_is_refused_as_in_python(tmp_path: Path) -> None:
    errors = []
    plain = written(tmp_path, "raw_stream99 = get_raw_stream(99)\nreturn (raw_stream99, )")
    for call in (plain, prepare(plain)):
        with pytest.raises(RuntimeError) as error:
            call([])
        errors.append(str(error.value).splitlines()[0])
    assert errors[0] == errors[1]


def test_errors_of_python_show_the_line_of_the_generated_code(tmp_path: Path) -> None:
    call = prepare(written(tmp_path, "a, = args\nb = a + 1\nc = b + 'x'\nreturn (c, )"))
    with pytest.raises(TypeError) as error:
        call([1])
    last = traceback.extract_tb(error.value.__traceback__)[-1]
    assert (last.filename, last.line) == (str(tmp_path / "generated.py"), "c = b + 'x'")


def test_what_is_deleted_is_freed_at_once(tmp_path: Path) -> None:
    freed: list[bool] = []
    plain = written(
        tmp_path,
        """
        a, note = args
        args.clear()
        b = empty_strided_mtia((4, ), (1, ), torch.float32)
        note('a')
        del a
        note('-')
        return (b, )
        """,
    )
    for call in (plain, prepare(plain)):
        tensors = [on_device(3)]
        alive = weakref.ref(tensors[0])
        call([tensors.pop(), lambda _what, alive=alive: freed.append(alive() is None)])
    assert freed == [False, True] * 2


class Marker:
    pass


def test_prepared_code_is_freed_with_its_module(tmp_path: Path) -> None:
    plain = written(tmp_path, "a, = args\nb = a + 1\nreturn (b, )")
    scope = plain.__globals__
    scope["call"], scope["marker"] = prepare(plain), Marker()
    alive = weakref.ref(scope["marker"])
    del plain, scope
    gc.collect()
    assert alive() is None


# Compiled functions ---------------------------------------------------------------------------------------------------


def module_of(function: Callable[..., Any], *args: Any, **options: Any) -> ModuleType:
    """The generated code of a compiled function, after a call."""
    torch._dynamo.reset()
    with fresh_cache(), torch.no_grad():
        torch.compile(function, **options)(*args)
        return PyCodeCache.modules[-1]


def test_compiled_functions_allocate_and_launch_without_python(monkeypatch: pytest.MonkeyPatch) -> None:
    prepared_with: list[str] = []
    make = _C.PreparedCall

    def recorded(registers: int, parameters: int, operations: Any, results: Any) -> _C.PreparedCall:
        prepared_with.extend(name for name, *_ in operations)
        return make(registers, parameters, operations, results)

    monkeypatch.setattr(_C, "PreparedCall", recorded)
    module_of(lambda x: (x + 1).softmax(0), on_device(3, 4))
    assert {"allocate", "launch"} <= {*prepared_with}


def branches(x: Tensor) -> tuple[Tensor, ...]:
    y = torch.softmax(x, 0) @ x.t()
    return y, y.sort(-1).values[1:], x.sum(), x[:, 1:].t() + 1, y.argmax(-1)


def ten(x: Tensor) -> Tensor:
    for axis in range(10):
        x = torch.softmax(x + axis, axis % 2)
    return x


PROGRAMS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "one kernel": (lambda x: x.sin() + 1, {}),
    "ten kernels": (ten, {}),
    "products, views and operators of PyTorch": (branches, {}),
    "symbolic sizes": (branches, {"dynamic": True}),
    "the CPU between": (lambda x: (x.sum().cpu() + 1).to(device_type()) * x, {}),
    "in place": (lambda x: x.add_(1).t().mul_(2), {}),
    "a convolution": (lambda x: F.conv2d(x[None, None], x[None, None, :3, :3]).relu(), {}),
    "constants": (lambda x: x + torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], device=x.device), {}),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", PROGRAMS, ids=str)
def test_compiled_functions_are_prepared_and_do_what_their_source_says(name: str) -> None:
    function, options = PROGRAMS[name]
    module = module_of(function, on_device(6, 6), **options)
    assert type(module.call.__func__) is _C.PreparedCall
    args = [6, on_device(6, 6) / 7] if "dynamic" in options else [on_device(6, 6) / 7]
    plain, prepared = ([x.clone() if isinstance(x, Tensor) else x for x in args] for _ in range(2))
    expected = module.Runner.call(module.runner, plain[:])
    torch.testing.assert_close(module.call(prepared[:]), expected, rtol=0, atol=0)
    torch.testing.assert_close(prepared, plain, rtol=0, atol=0)


SETTINGS: dict[str, dict[str, Any]] = {
    "no partitions": {"graph_partition": False},
    "no checks": {"size_asserts": False, "alignment_asserts": False},
    "planned memory": {"memory_planning": True},
    "synchronized": {"triton.debug_sync_kernel": True, "triton.debug_sync_graph": True},
    "hooks": {"generate_intermediate_hooks": True},
    "combined kernels": {"combo_kernels": True},
    "several kernels": {"triton.multi_kernel": 1},
    "values checked": {"nan_asserts": True},
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_settings_change_no_result(settings: str) -> None:
    x = on_device(6, 6) / 7
    torch._dynamo.reset()
    results = torch.compile(branches, options=SETTINGS[settings])(x)
    for result, expected in zip(results, branches(x), strict=True):
        torch.testing.assert_close(result, expected)


def test_functions_that_are_partly_captured_are_prepared_too() -> None:
    module = module_of(lambda x: (x + 1).sum().cpu() * 2, on_device(6, 6), mode="reduce-overhead")
    assert module.runner.partitions
    assert type(module.call.__func__) is _C.PreparedCall


def test_gradients_of_prepared_code() -> None:
    torch._dynamo.reset()
    x = on_device(6, 6) / 7
    gradients = []
    for call in (ten, torch.compile(ten), torch.compile(ten)):
        leaf = x.clone().requires_grad_()
        call(leaf).square().sum().backward()
        gradients.append(leaf.grad)
    for gradient in gradients[1:]:
        torch.testing.assert_close(gradient, gradients[0])


# Launches ------------------------------------------------------------------------------------------------------------


def in_turns(x: Tensor) -> Tensor:
    """Small kernels, each of which needs all that the one before gave."""
    for index in range(4):
        x = (x + index).softmax(index % 2)
    return x


def prepared_in_turns(x: Tensor, **options: Any) -> tuple[Callable[..., Any], list[Any]]:
    """The same, compiled and called, and the kernels of its code."""
    torch.compiler.reset()
    with fresh_cache():
        compiled = torch.compile(in_turns, **options)
        for _ in range(3):
            torch.testing.assert_close(compiled(x).cpu(), in_turns(x.cpu()))
        kernels = [kernel for name, kernel in vars(PyCodeCache.modules[-1]).items() if name.startswith("triton_")]
    assert len(kernels) == 4
    return compiled, kernels


def test_every_launch_is_seen_while_somebody_watches() -> None:
    x = on_device(4, 4)
    compiled, _ = prepared_in_turns(x)
    expected = compiled(x)
    seen: list[str] = []
    for chain in (triton.knobs.runtime.launch_enter_hook, triton.knobs.runtime.launch_exit_hook):
        hook = lambda metadata: seen.append(metadata.get()["name"])  # noqa: E731
        chain.add(hook)
        try:
            assert torch.equal(compiled(x), expected)
        finally:
            chain.remove(hook)
        assert torch.equal(compiled(x), expected)
    assert len(seen) == 8
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        compiled(x)
    assert sum(event.name.startswith("triton_") for event in profile.events()) == 4


def test_a_launcher_that_changes_is_noticed() -> None:
    x = on_device(4, 4)
    compiled, kernels = prepared_in_turns(x)
    expected = compiled(x)
    launched: list[Any] = []
    usual = kernels[1]._cached_launcher

    def launch(*args: Any, stream: int) -> Any:
        launched.append(args)
        return usual(*args, stream=stream)

    kernels[1]._cached_launcher = launch
    assert torch.equal(compiled(x), expected)
    assert len(launched) == 1
    kernels[1]._cached_launcher = usual
    assert torch.equal(compiled(x), expected)
    assert len(launched) == 1


def test_a_method_that_is_replaced_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    x = on_device(4, 4)
    compiled, kernels = prepared_in_turns(x)
    expected = compiled(x)
    runs: list[Any] = []
    usual: Any = MTIAAutotuner.run

    def run(self: MTIAAutotuner, *args: Any, **named: Any) -> Any:
        runs.append(self)
        return usual(self, *args, **named)

    with monkeypatch.context() as patch:
        patch.setattr(MTIAAutotuner, "run", run)
        assert torch.equal(compiled(x), expected)
    assert runs == kernels
    assert torch.equal(compiled(x), expected)
    assert runs == kernels


def test_launches_behind_code_of_python_see_what_it_changed() -> None:
    x = on_device(4, 4)
    launched: list[Any] = []

    @torch.library.custom_op(f"mtia_test::watches{id(launched)}", mutates_args=())
    def watches(x: Tensor) -> Tensor:
        if switched_on[0]:
            triton.knobs.runtime.launch_enter_hook.add(launched.append)
        return x.clone()

    watches.register_fake(torch.empty_like)
    switched_on = [False]
    compiled = torch.compile(lambda x: watches((x + 1).softmax(0)).softmax(1))
    expected = compiled(x)
    assert torch.equal(compiled(x), expected)
    switched_on[0] = True
    try:
        assert torch.equal(compiled(x), expected)
    finally:
        triton.knobs.runtime.launch_enter_hook.remove(launched.append)
    assert len(launched) == 1


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dynamic", [False, True])
def test_sizes_change_between_calls(dynamic: bool) -> None:
    x = on_device(4, 4)
    compiled, _ = prepared_in_turns(x, dynamic=dynamic)
    for size in (4, 5, 7, 4, 9, 5):
        given = on_device(size, size + 1)
        for _ in range(2):
            torch.testing.assert_close(compiled(given).cpu(), in_turns(given.cpu()))


def test_launches_go_to_the_stream_of_the_call_and_into_graphs() -> None:
    x = on_device(4, 4)
    compiled, _ = prepared_in_turns(x)
    other = torch.mtia.Stream()
    other.wait_stream(torch.mtia.current_stream())
    with torch.mtia.stream(other):
        on_other = compiled(x)
        graph = torch.mtia.MTIAGraph()
        with torch.mtia.graph(graph):
            captured = compiled(x)
    torch.mtia.synchronize()
    x.mul_(-0.5)
    torch.mtia.synchronize()
    graph.replay()
    torch.testing.assert_close(on_other.cpu(), in_turns(on_device(4, 4).cpu()))
    torch.testing.assert_close(captured.cpu(), in_turns(x.cpu()))


def test_threads_call_the_same_code_at_once() -> None:
    x = on_device(4, 4)
    compiled, _ = prepared_in_turns(x)

    def call(seed: int) -> bool:
        given = on_device(4, 4) / (seed + 1)
        expected = in_turns(given.cpu())
        return all(torch.allclose(compiled(given).cpu(), expected) for _ in range(200))

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(call, range(8)))


def test_an_unloaded_kernel_is_refused() -> None:
    x = on_device(4, 4)
    compiled, kernels = prepared_in_turns(x)
    kernels[2].launchers[0].__globals__["function"].unload()
    with pytest.raises(RuntimeError, match="was unloaded"):
        compiled(x)


@pytest.mark.wide
def test_kernels_may_be_unloaded_while_other_threads_launch_them(run_script: RunScript) -> None:
    script = run_script(
        """
        import threading
        import torch
        from torch._inductor.codecache import PyCodeCache
        def in_turns(x):
            for index in range(24):
                x = (x + index / 10).softmax(index % 2)
            return x
        x = torch.arange(16.).reshape(4, 4).to("mtia")
        compiled = torch.compile(in_turns)
        for _ in range(3):
            expected = compiled(x).cpu()
        errors = []
        called = threading.Semaphore(0)
        def call():
            while True:
                try:
                    assert torch.equal(compiled(x).cpu(), expected)
                except Exception as error:
                    errors.append(error)
                    if loaded == 0:
                        return
                finally:
                    called.release()
        kernels = [value for name, value in vars(PyCodeCache.modules[-1]).items() if name.startswith("triton_")]
        loaded = len(kernels)
        threads = [threading.Thread(target=call) for _ in range(2)]
        for thread in threads:
            thread.start()
        for kernel in reversed(kernels):
            for _ in range(10):
                called.acquire()
            kernel.launchers[0].__globals__["function"].unload()
            loaded -= 1
        for thread in threads:
            thread.join()
        print({"was unloaded" in str(error) for error in errors})
        """
    )
    assert script.output().strip() == "{True}"
