"""The checks of inductor_table.py."""

from __future__ import annotations

import contextlib
import inspect
import io
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar
from unittest import mock

import torch

import torch_mtia
from tests.gate_checks.core import DEVICE, Function, processors, raises, with_values, with_variable

# Decompositions -------------------------------------------------------------------------------------------------------


def fills_with_no_scalar(masked_fill: Function) -> bool:
    x = torch.ones(2, device=DEVICE)
    return raises(masked_fill, x, x > 0, torch.tensor(2.0))


def divides_index_add(index_add: Function) -> bool:
    x = torch.ones(3, device=DEVICE)
    return index_add(x, 0, torch.tensor([1], device=DEVICE), torch.ones(1, device=DEVICE)) is not NotImplemented


def divides_softmax(select_decomp_table: Function) -> bool:
    with torch._inductor.config.patch(batch_invariant=True):
        softmax = select_decomp_table()[torch.ops.aten._softmax.default]
    return softmax(torch.ones(3, device=DEVICE), 0, False) is not NotImplemented


def compiles_in_no_mode(compile_fx: Function) -> bool:
    found = []

    def inner_compile(graph: torch.fx.GraphModule, *_args: Any, **_kwargs: Any) -> Function:
        found.append(torch._inductor.config.batch_invariant)
        return graph.forward

    with torch_mtia.numerics("batch_invariant"):
        compile_fx(
            torch.fx.symbolic_trace(lambda x: x + 1), [torch.ones(3, device=DEVICE)], inner_compile=inner_compile
        )
    return found != [True]


def guards_on_no_mode(guard_on_global_state: Function) -> bool:
    builder = mock.MagicMock()
    node = mock.Mock(meta={"example_value": torch.empty(0, device=DEVICE)})
    builder.check_fn_manager.output_graph.graph.nodes = [node]
    guard_on_global_state(builder, mock.MagicMock())
    return not builder.guard_manager.root.add_lambda_guard.called


def refuses_out_dtype(lowering: Function) -> bool:
    texts = inspect.unwrap(lowering).__code__.co_consts
    return any("only supported for CUDA or XPU" in text for text in texts if isinstance(text, str))


# Inductor -------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _lowering() -> Iterator[None]:
    """As while Inductor lowers a graph on mtia."""
    from torch._inductor.virtualized import V

    with V.set_graph_handler(SimpleNamespace(device_types={DEVICE}, env={})):  # type: ignore[arg-type]
        yield


def file_of_times_is_of_no_device(path_of_file: Callable[[], Path]) -> bool:
    from torch_mtia.inductor import cache_key

    paths = set()
    for identity in ("a device", "another"):
        with with_values(cache_key, identity=lambda identity=identity: identity):
            paths.add(path_of_file())
    return len(paths) == 1


def checks_beyond_the_end(check_nan: Function) -> bool:
    from torch._inductor.codegen import common
    from torch._inductor.utils import IndentedBuffer
    from torch._inductor.virtualized import V

    axis = SimpleNamespace(mask_name=lambda: "xmask", is_reduction=False)
    kernel = SimpleNamespace(range_trees=[axis], filter_masks=lambda _: None)
    scheduling = SimpleNamespace(current_device=torch.device(DEVICE, 0), device_types={DEVICE})

    class Value:
        mask_vars: ClassVar = {"xmask"}

    code = IndentedBuffer()
    with (
        V.set_graph_handler(scheduling),  # type: ignore[arg-type]
        V.set_kernel_handler(kernel),
        with_values(common, get_current_backend=lambda: "triton"),
    ):
        check_nan(code, Value())
    return "xmask" not in code.getvalue()


def asks_for_streams_in_python(get_current_stream: Function) -> bool:
    from torch._dynamo import utils

    return utils.__file__ in _files_entered(lambda: get_current_stream(torch.device(DEVICE, 0)))


def keeps_streams_in_python(store: Function) -> bool:
    from torch._dynamo import graph_bytecode_inputs

    kept = dict(graph_bytecode_inputs.index_to_external_object_weakref)
    try:
        return graph_bytecode_inputs.__file__ in _files_entered(store)
    finally:
        graph_bytecode_inputs.index_to_external_object_weakref.update(kept)


def _files_entered(call: Callable[[], object]) -> list[str]:
    """The source files of the Python functions that it calls."""
    files: list[str] = []
    before = sys.getprofile()
    sys.setprofile(lambda frame, *_: files.append(frame.f_code.co_filename))
    try:
        call()
    finally:
        sys.setprofile(before)
    return files


def leaves_workers_without(environment: Callable[[], dict[str, str]]) -> bool:
    with with_variable("TORCH_DEVICE_BACKEND_AUTOLOAD", "0"):
        return environment()["TORCH_DEVICE_BACKEND_AUTOLOAD"] != "1"


def knows_one_autotuner(cached_autotune: Function) -> bool:
    """The class that launches kernels of the device."""
    import triton
    from torch._inductor.runtime.hints import DeviceProperties, HeuristicType
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner

    meta = {"device": DeviceProperties.create(torch.device(DEVICE, 0)), "signature": {}, "constants": {}}
    tune = cached_autotune({"x": 64}, [triton.Config({"XBLOCK": 8})], meta, HeuristicType.POINTWISE, inductor_meta={})
    return type(tune(triton.JITFunction(_a_kernel))) is CachingAutotuner


def _a_kernel(x, XBLOCK):  # type: ignore[no-untyped-def]
    pass


def has_no_templates_on_few_processors(is_big_gpu: Function) -> bool:
    from torch._inductor.runtime.hints import DeviceProperties

    forget = getattr(is_big_gpu, "cache_clear", lambda: None)
    forget()
    few = SimpleNamespace(type=DEVICE, multi_processor_count=2, major=None)
    try:
        with with_values(DeviceProperties, create=lambda _: few):
            return not is_big_gpu(torch.device(DEVICE, 0))
    finally:
        forget()


def refuses_a_second_gpu(type_of_gpu: Callable[[], str]) -> bool:
    """Where CUDA has a device as well."""
    forget = getattr(type_of_gpu, "cache_clear", lambda: None)
    forget()
    try:
        with with_values(torch.cuda, is_available=lambda: True):
            return raises(type_of_gpu) or type_of_gpu() != "cuda"
    finally:
        forget()


def forgets_where_views_are(initialize: Function) -> bool:
    """Programs that differ in the offset of one of two views have the same key."""
    from torch._functorch._aot_autograd.autograd_cache import AOTAutogradCacheDetails, autograd_cache_key
    from torch._functorch._aot_autograd.schemas import AOTConfig
    from torch._guards import TracingContext, tracing
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    graph = torch.fx.Graph()
    x, y = graph.placeholder("x"), graph.placeholder("y")
    graph.output((graph.call_function(torch.add, (x, y)),))
    config = AOTConfig(None, None, None, {}, 2, 0, False)
    base = torch.ones(8, device=DEVICE)
    keys = set()
    context = TracingContext(FakeTensorMode(shape_env=ShapeEnv()))
    with with_values(AOTAutogradCacheDetails, __init__=initialize), tracing(context):
        for offset in (0, 4):
            views = [base[:4], base[offset : offset + 4]]
            keys.add(autograd_cache_key(torch.fx.GraphModule({}, graph), views, config, None)[0])
    return len(keys) == 1


def counts_no_processors(count: Callable[[], int]) -> bool:
    return raises(count) or count() != processors()


def logs_another_device(log: Function) -> bool:
    text = io.StringIO()
    formatter = SimpleNamespace(fopen_context=lambda *_, **__: contextlib.nullcontext(text))
    node = SimpleNamespace(get_device=lambda: torch.device(DEVICE, 0))

    class Choice:
        info_dict = dict

    failed = raises(log, formatter, "mm", [node], {Choice(): 1.0}, 0.0, 0.0, None)
    return failed or torch.mtia.get_device_properties(0)["name"] not in text.getvalue()


def splits_for_no_device(split_keys: Function) -> bool:
    with _lowering():
        return raises(split_keys, 1, 1, 1024)


def adds_atomically(needs_fallback: Function) -> bool:
    with _lowering():
        return not needs_fallback(torch.float32)


def knows_no_limit_on_buffers(falls_back: Function) -> bool:
    """An operator of three results is lowered to one kernel where two buffers are allowed."""
    from torch_mtia.inductor import config

    node = torch.fx.Graph().call_function(torch.ops.aten.native_layer_norm.default)
    node.meta["val"] = tuple(torch.empty(2, device=DEVICE) for _ in range(3))
    with _lowering(), config.patch(max_kernel_io_buffers=2):
        return not falls_back(node)


# Fusion and lowering --------------------------------------------------------------------------------------------------


def fuses_no_reductions(is_triton: Function) -> bool:
    node = SimpleNamespace(is_gpu=lambda: True, get_device=lambda: torch.device(DEVICE, 0))
    with _lowering():
        return not is_triton(node, node)


def generates_no_products(use_native_matmul: Function) -> bool:
    from torch._inductor import config
    from torch._inductor.sizevars import SizeVarAllocator
    from torch._inductor.virtualized import V

    operand = SimpleNamespace(
        get_device=lambda: torch.device(DEVICE, 0), dtype=torch.float32, get_size=lambda: [16, 16]
    )
    graph: Any = SimpleNamespace(device_types={DEVICE}, sizevars=SizeVarAllocator())
    with V.set_graph_handler(graph), config.patch({"triton.native_matmul": True}):
        return not use_native_matmul(operand, operand)


def never_pads(check_device: Function) -> bool:
    from torch._inductor import config

    x = torch.empty(1, device=DEVICE)
    with config.patch(force_shape_pad=True):
        return not check_device(x, x)


def multiplies_one_after_the_other(is_good: Function) -> bool:
    shapes = (256, 32), (32, 256), (256, 32)
    operands = [SimpleNamespace(meta={"val": torch.empty(shape, device=DEVICE)}) for shape in shapes]
    return not is_good(True, *operands)


def counts_out_dtype_as_a_shape(count: Function) -> bool:
    x = torch.empty(1, 1, 1, device=DEVICE)
    return raises(count, x, x, x, torch.float32, out_val=x)


def reads_rows_three_times(check: Function) -> bool:
    value = SimpleNamespace(device=torch.device(DEVICE))
    return not check(SimpleNamespace(kwargs={"x": SimpleNamespace(meta={"val": value})}))


def takes_out_dtype_for_beta(decomposition: Function) -> bool:
    operands = [torch.ones(1, 1, 1, dtype=dtype, device=DEVICE) for dtype in (torch.float32, *[torch.bfloat16] * 2)]
    return raises(decomposition, *operands, torch.float32, beta=2)


# Numbers of 8 and 4 bits ----------------------------------------------------------------------------------------------


def refuses_fp8(check: Function) -> bool:
    from torchao.quantization.granularity import PerTensor

    return raises(check, (PerTensor(), PerTensor()))


def packs_no_4_bits(pack: Function) -> bool:
    return raises(pack, torch.ones(16, 128, dtype=torch.bfloat16, device=DEVICE), [1, 32])


# Autotuning -----------------------------------------------------------------------------------------------------------


def measures_once(benchmark_choices: Function) -> bool:
    """Two choices that are equally quick."""
    from torch._inductor.select_algorithm import AlgorithmSelectorCache

    measured: list[str] = []
    tensors = SimpleNamespace(output_tensor=torch.empty(1, device=DEVICE))

    def measure(choice: str, _arguments: object) -> float:
        measured.append(choice)
        return 1.0

    with with_values(
        AlgorithmSelectorCache, benchmark_choice=staticmethod(measure), _is_extern=staticmethod(lambda _: True)
    ):
        benchmark_choices(["a", "b"], SimpleNamespace(get_benchmark_tensors=lambda _: tensors))
    return len(measured) <= 2


_LAYOUT = SimpleNamespace(device=torch.device(DEVICE))


class _Choice:
    layout = _LAYOUT
    bmreq = "request"
    hash_key = staticmethod(lambda: "choice")


def measures_once_elsewhere(benchmark_in_sub_process: Function) -> bool:
    """Two choices that are equally quick."""
    return len(_measured_elsewhere(benchmark_in_sub_process, None)) <= 2


def makes_up_operands_elsewhere(benchmark_in_sub_process: Function) -> bool:
    """The choices are measured in another process, which is not told how their operands are made."""
    return bool(_measured_elsewhere(benchmark_in_sub_process, {0: lambda _: torch.empty(0)}))


def _measured_elsewhere(benchmark_in_sub_process: Function, input_gen_fns: Any) -> list[object]:
    from torch._inductor import autotune_process
    from torch._inductor.select_algorithm import AlgorithmSelectorCache

    measured: list[object] = []

    def measure(choices: list[object]) -> dict[object, float]:
        measured.extend(choices)
        return dict.fromkeys(choices, 1.0)

    with (
        with_values(autotune_process, benchmark_in_sub_process=measure),
        with_values(AlgorithmSelectorCache, benchmark_in_current_process=staticmethod(lambda *_, **__: {})),
    ):
        benchmark_in_sub_process([_Choice(), _Choice()], [], _LAYOUT, input_gen_fns)
    return measured


@contextlib.contextmanager
def _pool_that_finds_all_equal() -> Iterator[list[object]]:
    """Collects what the other process is given to measure."""
    from torch._inductor import autotune_process

    submitted: list[object] = []

    def submit(_function: object, request: object) -> SimpleNamespace:
        submitted.append(request)
        return SimpleNamespace(result=lambda _limit=None: 1.0)

    pool = SimpleNamespace(submit=submit, warm_up=lambda: SimpleNamespace(result=lambda: True))
    with (
        with_values(autotune_process, AutotuneProcessPool=SimpleNamespace(get_instance=lambda: pool)),
        with_values(autotune_process.AsyncAutotuner, choice_hash_to_future={}),
    ):
        yield submitted


def measures_at_once(start: Function) -> bool:
    with _pool_that_finds_all_equal() as submitted:
        start([_Choice()], "key")
    return bool(submitted)


def measures_once_in_the_pipeline(get_results: Function) -> bool:
    """Two choices that are equally quick."""
    from torch._inductor.autotune_process import AsyncAutotuner

    with _pool_that_finds_all_equal() as submitted:
        AsyncAutotuner.choice_hash_to_future["choicekey"] = SimpleNamespace(result=lambda: 1.0)
        get_results([_Choice(), _Choice()], "key")
    return not submitted


def leaves_to_the_pipeline_what_lowering_needs(choose: Function) -> bool:
    """A choice that the scheduler is not to make."""
    from torch._inductor import config
    from torch._inductor.autotune_process import AutotuneProcessPool

    pipelined: list[bool] = []

    def measure(*_args: object, **_options: object) -> dict[object, float]:
        pipelined.append(config.pipeline_max_autotune_gemm)
        return {}

    class _TwoChoices:
        preprocessing_fns = ()
        make_precompile_fn = staticmethod(lambda *_, **__: None)
        do_autotuning = staticmethod(measure)

    choice = SimpleNamespace(output_node=lambda: None)
    with (
        config.patch(pipeline_max_autotune_gemm=True),
        with_values(AutotuneProcessPool, _shutdown_for_inactivity=False),
    ):
        choose(_TwoChoices(), "mm", [choice, choice], [], _LAYOUT, {})
    return any(pipelined)


def forgets_the_limit(benchmark: Function) -> bool:
    from torch._inductor import config

    with ThreadPoolExecutor(1) as executor, config.patch(max_autotune_subproc_result_timeout_seconds=1.5):
        limit = lambda _: config.max_autotune_subproc_result_timeout_seconds  # noqa: E731
        times = benchmark(SimpleNamespace(executor=executor, target=limit), [choice := _Choice()])
    return bool(times[choice] != 1.5)


# Packages -------------------------------------------------------------------------------------------------------------


def tunes_at_the_first_call(generate: Function) -> bool:
    """A package whose kernels are launched while it is made."""
    from torch._inductor import config
    from torch._inductor.virtualized import V

    tuned: list[object] = []
    graph = SimpleNamespace(
        device_types={DEVICE},
        aot_mode=True,
        operations=[],
        mutated_inputs=[],
        example_inputs=[],
        removed_buffers=set(),
        removed_operations=set(),
        inplaced_to_remove=set(),
        sizevars=SimpleNamespace(precomputed_replacements={}, inv_precomputed_replacements={}),
        compile_to_module=lambda: SimpleNamespace(call=tuned.append),
        codegen=lambda: None,
    )
    with V.set_graph_handler(graph), config.patch({"triton.autotune_at_compile_time": False}):  # type: ignore[arg-type]
        generate(graph)
    return not tuned


def links_no_device(build_options: Function) -> bool:
    *_, libraries, _ = build_options(DEVICE)
    return not any(DEVICE in library for library in libraries)


def compiles_kernels_at_the_first_call(settings: Function) -> bool:
    return not settings(log_cudagraph_skip=False)["triton.autotune_at_compile_time"]


# mode="reduce-overhead" -----------------------------------------------------------------------------------------------


def records_no_graph(cudagraphify: Function) -> bool:
    options = {"device_index": 0, "stack_traces": [], "is_backward": False, "is_inference": True}
    model = cudagraphify(lambda inputs: [inputs[0] + 1], **options)
    return raises(model, [torch.ones(2, device=DEVICE)])


def backward_needs_trees(handle_backward: Function) -> bool:
    from torch._inductor.cudagraph_utils import BoxedDeviceIndex

    compiled = SimpleNamespace(
        current_callable=lambda inputs: inputs, fx_kwargs={"is_backward": True}, device_types={DEVICE}
    )
    return raises(handle_backward, compiled, BoxedDeviceIndex(None))
