"""The checks of table.py: what upstream's functions do today."""

from __future__ import annotations

import contextlib
import operator
import os
from collections.abc import Callable, Iterator
from types import CodeType, SimpleNamespace
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from torch_mtia.backend import device_type

DEVICE = "mtia"
Function = Callable[..., Any]


def raises(function: Function, *args: Any, **kwargs: Any) -> bool:
    try:
        function(*args, **kwargs)
    except Exception:
        return True
    return False


@contextlib.contextmanager
def with_values(holder: Any, **values: Any) -> Iterator[None]:
    """While it lasts, a module or a class has other attributes."""
    before = {name: getattr(holder, name) for name in values}
    try:
        for name, value in values.items():
            setattr(holder, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(holder, name, value)


@contextlib.contextmanager
def with_variable(name: str, value: str) -> Iterator[None]:
    """While it lasts, the environment has a variable."""
    before = dict(os.environ)
    os.environ[name] = value
    try:
        yield
    finally:
        os.environ.pop(name)
        os.environ.update(before)


def processors() -> int:
    return int(torch.mtia.get_device_properties(0)["multi_processor_count"])


# Tensors and the profiler ---------------------------------------------------------------------------------------------


def credits_nothing(parse_results: Function) -> bool:
    """Neither the time that the device takes nor the memory, to the operator that causes them."""
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.MTIA]
    x = torch.ones(1000, device=DEVICE)
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        x.add(1)
        torch.mtia.synchronize()
    events = parse_results(profile.profiler, profile.profiler.kineto_results)
    sums = [
        event
        for event in events
        if event.name == "aten::add" and event.device_type == torch._C._autograd.DeviceType.CPU
    ]
    return not all(event.kernels and event.device_memory_usage for event in sums)


def pickles_no_storage(reduce_ex: Function) -> bool:
    _, arguments = reduce_ex(torch.ones(2, device=DEVICE), 2)
    return not any(isinstance(each, torch.UntypedStorage | torch.TypedStorage) for each in arguments)


def copies_apart(deepcopy: Function) -> bool:
    """What two tensors share, their copies do not."""
    x, memo = torch.ones(4, device=DEVICE), dict[int, Any]()
    return len({deepcopy(each, memo).untyped_storage().data_ptr() for each in (x, x[2:])}) == 2


def hashes_nothing(hash_storage: Function) -> bool:
    return raises(hash_storage, torch.ones(4, device=DEVICE).untyped_storage())


def makes_no_tensor(new: Function) -> bool:
    return raises(new, torch.ones(2, device=DEVICE), 3)


def attends_to_nothing(jagged_attention: Function) -> bool:
    values = torch.ones(3, 2, 4, device=DEVICE)
    offsets = torch.tensor([0, 1, 3], device=DEVICE)
    queries = torch.nested.nested_tensor_from_jagged(values, offsets).transpose(1, 2)
    return raises(jagged_attention, queries, queries, queries)


# Triton ---------------------------------------------------------------------------------------------------------------


def measures_the_same_code_again(name: str, method: Function) -> bool:
    import triton
    from triton.runtime.autotuner import Autotuner

    from tests.test_triton_same_code import Measurement, fill, of_warps

    measurement = Measurement(triton.JITFunction(fill.fn), of_warps(BLOCK=64))
    with with_values(Autotuner, **{name: method}):
        measurement.launch(1.0)
    return measurement.count > 1


def launches_what_did_not_load(init_handles: Function) -> bool:
    """A kernel of the device."""
    from triton.compiler import compiler

    def load_binary(*_: Any) -> None:
        raise RuntimeError("no such image")

    utils = SimpleNamespace(load_binary=load_binary, get_device_properties=lambda _: {"max_shared_mem": 0})
    driver = SimpleNamespace(
        get_current_device=lambda: 0,
        get_current_target=lambda: SimpleNamespace(warp_size=1),
        launcher_cls=lambda *_: lambda *_: None,
        utils=utils,
    )
    metadata = SimpleNamespace(shared=0, num_warps=1, warp_size=1, target=SimpleNamespace(backend="mtia"))
    kernel = SimpleNamespace(
        module=None,
        function=None,
        _run=None,
        metadata=metadata,
        metadata_group={},
        src=None,
        name="",
        kernel=b"",
        hash="",
    )
    with with_values(compiler, driver=SimpleNamespace(active=driver), max_shared_mem=lambda _: 0):
        failed = raises(init_handles, kernel)
    return not failed or kernel._run is not None


def drops_our_binaries(code: CodeType) -> bool:
    return any(isinstance(each, tuple) and "cubin" in each and "mtiabin" not in each for each in code.co_consts)


def prints_no_functional_tensor(to_text: Function) -> bool:
    return "functional" not in to_text(torch._to_functional_tensor(torch.empty(0).to(DEVICE)))


def refuses_flex_attention(validate: Function) -> bool:
    return raises(validate, *[torch.ones(1, device=DEVICE)] * 3)


def forgets_what_to_restore(recreate: Function) -> bool:
    """The autotuner that is made where one stands over heuristics, on Triton's driver of mtia."""
    import triton
    from torch._higher_order_ops.triton_kernel_wrap import TritonHOPifier
    from triton.runtime import driver

    from torch_mtia.triton.driver import MTIADriver

    jitted = triton.JITFunction(_a_kernel)
    autotune = triton.autotune([triton.Config({})], key=[], restore_value=["x"])
    tuned = autotune(triton.heuristics({"EVEN": lambda _: True})(jitted))
    made: list[Any] = []

    class Tracing(TritonHOPifier):
        recreate_variable = recreate

        def get_kernel_source(self, _variable: Any) -> None: ...  # type: ignore[override]

        def call_user_defined_fn(self, *_: Any) -> Any:
            return True

        def maybe_unpack_heuristic_result(self, result: Any) -> Any:
            return result

        def call_triton_kernel(self, variable: Any, *others: Any) -> Any:
            if variable.kernel is tuned:
                return super().call_triton_kernel(variable, *others)
            made.append(variable.kernel)
            return None

    with with_values(driver, _active=MTIADriver()):
        Tracing().call_triton_kernel(SimpleNamespace(kernel=tuned, kernel_idx=0, grid=(1,)), [], {}, None)
    return list(made[0].restore_value or []) != ["x"]


def _a_kernel(x, EVEN):  # type: ignore[no-untyped-def]
    pass


# Graphs of operators --------------------------------------------------------------------------------------------------


def _call(graph: torch.fx.Graph, function: Any, *args: Any, value: Any) -> torch.fx.Node:
    node = graph.call_function(function, args)
    node.meta["val"] = value
    return node


def merges_returned_results(cse: Function) -> bool:
    """Of two operators of two results each one is left, though the results of both are returned."""
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = torch.ones(2, 3, device=DEVICE)
    results = []
    for _ in range(2):
        value = torch.max(x.meta["val"], 0)
        both = _call(graph, torch.ops.aten.max.dim, x, 0, value=value)
        results.append(_call(graph, operator.getitem, both, 0, value=value[0]))
    graph.output(tuple(results))
    return len(cse(graph).find_nodes(op="call_function", target=torch.ops.aten.max.dim)) == 1


def saves_no_state(call: Function) -> bool:
    from torch._prims.rng_prims import run_and_save_rng_state as save

    with with_values(type(save), __call__=call):  # which calls the operator again
        return raises(save, torch.ops.aten.rand.default, [2], device=torch.device(DEVICE))


def restores_no_state(call: Function) -> bool:
    from torch._prims.rng_prims import run_with_rng_state as run

    with with_values(type(run), __call__=call):
        return raises(run, torch.mtia.get_rng_state(), torch.ops.aten.rand.default, [2], device=torch.device(DEVICE))


def lays_out_convolutions_otherwise(name: str, function: Function, batch: int) -> bool:
    x = torch.ones(batch, 3, 4, 4, device=DEVICE).to(memory_format=torch.channels_last)
    weight = torch.ones(2, 3, 3, 3, device=DEVICE).to(memory_format=torch.channels_last)
    FakeTensorMode.cache_clear()
    with with_values(torch._C, **{name: function}), FakeTensorMode() as mode:
        fake = torch.conv2d(mode.from_tensor(x), mode.from_tensor(weight), padding=1)
    FakeTensorMode.cache_clear()
    return fake.stride() != torch.conv2d(x, weight, padding=1).stride()


# Devices of another name ----------------------------------------------------------------------------------------------


def makes_strided_nested_tensors(forward: Function) -> bool:
    layer = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    encoder = torch.nn.TransformerEncoder(layer, 1).eval().to(device_type())
    x, padding = torch.ones(1, 2, 16, device=device_type()), torch.tensor([[False, True]], device=device_type())
    with torch.no_grad():
        return raises(forward, encoder, x, src_key_padding_mask=padding)


def parts_what_is_shared(apply: Function) -> bool:
    """A module's parameter that two of its parts share."""
    module = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    module[1].weight = module[0].weight
    with with_values(torch.nn.Module, _apply=apply):
        module.to(device_type())
    return module[1].weight is not module[0].weight


def moves_no_parameter(move: Function) -> bool:
    return raises(move, [torch.nn.Parameter(torch.ones(2))], [], torch.device(device_type(), 0))


def divides_layer_norm(layer_norm: Function) -> bool:
    return layer_norm(torch.ones(2, 3, device=device_type()), [3], None, None, 1e-5) is not NotImplemented
