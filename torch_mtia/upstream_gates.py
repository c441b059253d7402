"""Doors that PyTorch opens by a literal list of devices which lacks `mtia`: opened here, in one table.

This is the only file of the package that assigns to anything in torch. A row of GATES says what is replaced, in which
versions, why, and how to tell that upstream no longer needs it; a test asks that of every row. To add one: write the
replacement, add the row.

A gate is applied to a module when that module is imported, and at once if it already is. Nothing is imported for it.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import CodeType, FunctionType, ModuleType
from typing import Any

import torch

from torch_mtia.import_hooks import after_import


@dataclass(frozen=True)
class Gate:
    """One name in PyTorch that is replaced."""

    name: str
    """The attribute, by its path in the module. One that is missing is added; its original is None."""
    modules: tuple[str, ...]
    """The modules that have it: the one that defines it, and those that import it by value."""
    why: str
    replace: Callable[[Any], Any]
    """Takes the original and returns the replacement."""
    is_needed: Callable[[Any], bool]
    """Takes the original; false once upstream does what the replacement is for."""
    versions: tuple[tuple[int, int], ...] = ((2, 13),)
    """The versions (major, minor) of PyTorch in which it is replaced."""


def _capturable_on_mtia(original: Callable[..., list[str]]) -> Callable[..., list[str]]:
    def _get_capturable_supported_devices(supports_xla: bool = True) -> list[str]:
        return [*original(supports_xla), "mtia"]

    return _get_capturable_supported_devices


def _profile_of_mtia(original: Callable[..., Any]) -> Callable[..., Any]:
    def _parse_kineto_results(self: Any, result: Any, *args: Any, **kwargs: Any) -> Any:
        from torch._C._autograd import DeviceType

        from torch_mtia.profiler import credit_operators

        events = original(self, result, *args, **kwargs)
        credit_operators(events, result, DeviceType.MTIA)
        return events

    return _parse_kineto_results


def _is_current_stream_capturing(_original: Any) -> Callable[[], bool]:
    def is_current_stream_capturing() -> bool:
        """Whether work of the current stream of the current device is being captured in a graph."""
        from torch_mtia import graphs

        return torch.mtia.is_initialized() and graphs.is_stream_capturing(torch.mtia.current_stream())

    return is_current_stream_capturing


def _refusing_elsewhere(original: Callable[..., None]) -> Callable[..., None]:
    def _init_handles(self: Any) -> None:
        loaded = self.module is not None
        original(self)
        if not loaded:
            from torch_mtia.triton.launch import refusing_tensors_of_mtia

            self._run = refusing_tensors_of_mtia(self._run)

    return _init_handles


def _empty_strided_mtia(_original: object) -> Callable[..., Any]:
    from torch_mtia._C import _empty_strided

    return _empty_strided


def _is_compiled_out(empty_strided: Callable[..., Any]) -> bool:
    try:
        empty_strided((1,), (1,), torch.float32)
    except RuntimeError as error:
        return "compiled without support" in str(error)
    return False


def _system_with_mtia(original: Callable[[], dict[str, Any]]) -> Any:
    @functools.cache
    def get_system() -> dict[str, Any]:
        from torch_mtia.inductor.cache_key import identity

        system, ours = original(), identity()
        digest = hashlib.sha256(f"{system['hash']} {ours}".encode()).hexdigest()
        return {**system, "mtia": ours, "hash": digest}

    return staticmethod(get_system)


def _choices_for_mtia(original: Callable[[], Any] | None) -> Callable[[], Any]:
    from torch_mtia import inductor

    return original or inductor.choices_for_mtia  # the original: somebody's own


def _get_generator(device: torch.device) -> torch.Generator:
    """The default generator of a device."""
    torch.mtia.init()
    index = torch.mtia.current_device() if device.index is None else device.index
    return torch.mtia.default_generators[index]


def _is_big_device(original: Callable[..., bool]) -> Callable[..., bool]:
    @functools.wraps(original)
    def is_big_gpu(index_or_device: Any = 0) -> bool:
        if getattr(index_or_device, "type", None) == "mtia":
            return True
        return original(index_or_device)

    return is_big_gpu


def _number_of_processors(original: Callable[[], int]) -> Callable[[], int]:
    @functools.lru_cache
    def get_max_num_sms() -> int:
        if torch.mtia.is_available() and not torch.cuda.is_available():
            return int(torch.mtia.get_device_properties()["multi_processor_count"])
        return original()

    return get_max_num_sms


def _adds_mtia(listed: Callable[[Any], bool]) -> Callable[[CodeType], CodeType]:
    """Makes a function's code with "mtia" in each tuple, or set, among its constants for which `listed` is true."""

    def replace(code: CodeType) -> CodeType:
        return code.replace(co_consts=tuple(map(extended, code.co_consts)))

    def extended(constant: Any) -> Any:
        if isinstance(constant, CodeType):
            return replace(constant)
        if isinstance(constant, tuple | frozenset) and listed(constant):
            return type(constant)([*constant, "mtia"])
        return constant

    return replace


def _lists_mtia(code: CodeType) -> bool:
    return any(
        _lists_mtia(constant)
        if isinstance(constant, CodeType)
        else isinstance(constant, tuple | frozenset) and "mtia" in constant
        for constant in code.co_consts
    )


def _device_list(name: str, module: str, why: str) -> Gate:
    """A gate in a function that asks whether a device is in a tuple, or a set, that it writes out.

    The code of the function is replaced, and not the function, which upstream keeps in tables too.
    """
    return Gate(
        name=f"{name}.__code__",
        modules=(module,),
        why=why,
        replace=_adds_mtia(lambda constant: "cuda" in constant and "xpu" in constant),
        is_needed=lambda code: not _lists_mtia(code),
    )


class _TorchWithMtiaAsCuda:
    """What the log of autotuning takes for torch."""

    class cuda:
        @staticmethod
        def get_device_name() -> str:
            return str(torch.mtia.get_device_properties()["name"])

        device_count = torch.mtia.device_count

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


def _log_of_mtia(original: Any) -> Callable[..., None]:
    of_mtia = FunctionType(original.__code__, {**original.__globals__, "torch": _TorchWithMtiaAsCuda()})

    @functools.wraps(original)
    def log_autotuning_results(self: Any, name: str, input_nodes: list[Any], *args: Any) -> None:
        is_ours = any(node.get_device().type == "mtia" for node in input_nodes)
        (of_mtia if is_ours else original)(self, name, input_nodes, *args)

    log_autotuning_results.__module__ = __name__
    return log_autotuning_results


def _split_keys(original: Callable[..., int]) -> Callable[..., int]:
    def get_split_k(batch: int, heads: int, keys: int) -> int:
        if _lowered_graph_on_mtia() is None:
            return original(batch, heads, keys)
        processors = int(torch.mtia.get_device_properties()["multi_processor_count"])
        return max(1, 2 * processors // max(batch * heads, 1))

    return get_split_k


def _lowered_graph_on_mtia() -> Any:
    """The graph that Inductor is lowering, if a tensor in it is on mtia."""
    from torch._inductor.virtualized import V

    return V.graph if "mtia" in getattr(V.graph, "device_types", ()) else None


def _atomic_additions_are_slow(original: Callable[..., bool]) -> Callable[..., bool]:
    """Compare-and-swap takes 9 ns; the operator's kernel adds 4M elements in 6 ms, the generated one in 37 ms."""

    def needs_fallback_due_to_atomic_add_limitations(dtype: torch.dtype) -> bool:
        return original(dtype) or _lowered_graph_on_mtia() is not None

    return needs_fallback_due_to_atomic_add_limitations


def _keeps_to_buffer_limit(original: Callable[..., bool]) -> Callable[..., bool]:
    def fallback_node_due_to_unsupported_type(node: torch.fx.Node, allow_cpu_inputs: bool = True) -> bool:
        from torch_mtia.inductor import guardrails

        if original(node, allow_cpu_inputs):
            return True
        graph = _lowered_graph_on_mtia()
        return graph is not None and guardrails.prepare_operator(node, graph.env)

    return fallback_node_due_to_unsupported_type


def _codegen_within_limit(original: Callable[..., Any]) -> Callable[..., Any]:
    def codegen_and_compile(*args: Any, **kwargs: Any) -> Any:
        from torch_mtia.inductor import guardrails

        with guardrails.limited():
            return original(*args, **kwargs)

    return codegen_and_compile


def _block_sizes(name: str, of: str) -> Gate:
    """A gate in the function that lists the configurations that are tried for a kind of generated kernel."""

    def replace(original: Callable[..., Any]) -> Callable[..., Any]:
        from torch_mtia.inductor import block_sizes

        return getattr(block_sizes, of)(original)  # type: ignore[no-any-return]

    return Gate(
        name=name,
        modules=("torch._inductor.runtime.triton_heuristics",),
        why="Block sizes are listed for GPUs, and depend on which GPU the process has, not on the kernel's device.",
        replace=replace,
        is_needed=lambda original: "mtia" not in original.__module__,
    )


def _one_device_may_be_mtia(original: Callable[..., str | None]) -> Callable[..., str | None]:
    def check_multiple_devices_or_any_cpu_nodes(device_node_mapping: dict[torch.device, torch.fx.Node]) -> str | None:
        reason = original(device_node_mapping)  # and takes the devices out that do not count
        return None if [device.type for device in device_node_mapping] == ["mtia"] else reason

    return check_multiple_devices_or_any_cpu_nodes


def _graphs_on_mtia(original: Callable[..., Any]) -> Callable[..., Any]:
    def cudagraphify(model: Any, static_input_idxs: Sequence[int] = (), **kwargs: Any) -> Callable[[Any], Any]:
        from torch_mtia.inductor import graphs

        chosen: list[Callable[[Any], Any]] = []

        def run(inputs: Any) -> Any:
            if not chosen:
                on_mtia = graphs.is_on_mtia(inputs)
                chosen.append(
                    graphs.graphify(model, static_input_idxs, kwargs.get("mutated_input_idxs", ()))
                    if on_mtia
                    else original(model, static_input_idxs, **kwargs)
                )
            return chosen[0](inputs)

        return run

    return cudagraphify


def _backward_without_trees(original: Callable[..., None]) -> Callable[..., None]:
    def maybe_handle_backward_generation(compiled_graph: Any, boxed_forward_device_index: Any) -> None:
        if "mtia" not in compiled_graph.device_types:
            original(compiled_graph, boxed_forward_device_index)

    return maybe_handle_backward_generation


_CAPTURABLE_OPTIMIZERS = ("adadelta", "adam", "adamax", "asgd", "nadam", "radam", "rmsprop", "rprop")

GATES: tuple[Gate, ...] = (
    Gate(
        name="_get_capturable_supported_devices",
        modules=("torch.optim.optimizer", *(f"torch.optim.{name}" for name in _CAPTURABLE_OPTIMIZERS)),
        why="Optimizers with capturable=True assert that their parameters are on one of the devices it lists.",
        replace=_capturable_on_mtia,
        is_needed=lambda original: "mtia" not in original(),
    ),
    Gate(
        name="profile._parse_kineto_results",
        modules=("torch.autograd.profiler",),
        why="The profiler credits the device's time and memory to operators only for the devices it lists.",
        replace=_profile_of_mtia,
        is_needed=lambda original: "DeviceType.MTIA" not in inspect.getsource(original),
    ),
    Gate(
        name="is_current_stream_capturing",
        modules=("torch.mtia",),
        why="torch.mtia has no counterpart of torch.cuda.is_current_stream_capturing.",
        replace=_is_current_stream_capturing,
        is_needed=lambda original: original is None,
    ),
    Gate(
        name="CompiledKernel._init_handles",
        modules=("triton.compiler.compiler",),
        why="A driver of Triton takes any address: one for another device would crash on tensors of mtia.",
        replace=_refusing_elsewhere,
        is_needed=lambda original: "mtia" not in inspect.getsource(original),
    ),
    Gate(
        name="_empty_strided_mtia",
        modules=("torch._C._dynamo.guards",),
        why="Code that Inductor generates allocates with it, and in wheels without MTIA it only raises.",
        replace=_empty_strided_mtia,
        is_needed=_is_compiled_out,
    ),
    Gate(
        name="CacheBase.get_system",
        modules=("torch._inductor.codecache",),
        why="The keys of Inductor's caches name the GPU and Triton, not the version of an out-of-tree backend.",
        replace=_system_with_mtia,
        is_needed=lambda original: "mtia" not in original(),
    ),
    Gate(
        name="_get_generator",
        modules=("torch.mtia",),
        why="Functions with random numbers that are recomputed in the backward of compiled code ask for it.",
        replace=lambda _original: _get_generator,
        is_needed=lambda original: original is None,
    ),
    Gate(
        name="inductor_choices_class",
        modules=("torch._inductor.config",),
        why="Inductor asks this setting, which is meant for other packages, how to divide work into programs.",
        replace=_choices_for_mtia,
        is_needed=lambda original: original is None,
    ),
    Gate(
        name="is_big_gpu",
        modules=("torch._inductor.utils",),
        why="Inductor has GEMM templates for devices of 68 processors or more; mtia has as many as its host has cores.",
        replace=_is_big_device,
        is_needed=lambda original: not original(torch.device("mtia", 0)),
    ),
    Gate(
        name="get_max_num_sms",
        modules=("torch._inductor.utils",),
        why="It asks torch.cuda for the number of processors whatever the device.",
        replace=_number_of_processors,
        is_needed=lambda original: "mtia" not in inspect.getsource(original),
    ),
    Gate(
        name="DebugFormatter.log_autotuning_results",
        modules=("torch._inductor.debug",),
        why="The log of autotuning names torch.cuda's device, and raises where there is none.",
        replace=_log_of_mtia,
        is_needed=lambda original: "mtia" not in original.__module__,
    ),
    Gate(
        name="get_split_k",
        modules=("torch._inductor.kernel.flex.flex_decoding",),
        why="FlexAttention for few queries divides the keys by the number of processors of torch.cuda's device.",
        replace=_split_keys,
        is_needed=lambda original: "mtia" not in original.__module__,
    ),
    Gate(
        name="needs_fallback_due_to_atomic_add_limitations",
        modules=("torch._inductor.utils", "torch._inductor.lowering"),
        why="It says for a GPU where atomic additions are slow: x86 has none of floating-point numbers.",
        replace=_atomic_additions_are_slow,
        is_needed=lambda original: "mtia" not in original.__module__,
    ),
    Gate(
        name="fallback_node_due_to_unsupported_type",
        modules=("torch._inductor.lowering", "torch._inductor.graph"),
        why="Operators are inlined into one kernel without a limit on its buffers; this decides about each of them.",
        replace=_keeps_to_buffer_limit,
        is_needed=lambda original: "mtia" not in original.__module__,
    ),
    Gate(
        name="_InProcessFxCompile.codegen_and_compile",
        modules=("torch._inductor.compile_fx",),
        why="The limit on buffers holds for combined kernels too, which only a setting bounds.",
        replace=_codegen_within_limit,
        is_needed=lambda original: "mtia" not in original.__module__,
    ),
    _block_sizes("pointwise", of="pointwise"),
    _block_sizes("_reduction_configs", of="reduction"),
    _block_sizes("_persistent_reduction_configs", of="persistent_reduction"),
    _device_list(
        "_validate_device", "torch.nn.attention.flex_attention", "FlexAttention refuses devices that it does not list."
    ),
    _device_list(
        "associative_scan",
        "torch._higher_order_ops.associative_scan",
        "associative_scan in pointwise mode, which becomes one Triton kernel, refuses devices that it does not list.",
    ),
    _device_list(
        "tuned_mm.__wrapped__", "torch._inductor.kernel.mm", "mm(out_dtype=...) is refused for devices not listed."
    ),
    _device_list(
        "tuned_bmm.__wrapped__", "torch._inductor.kernel.bmm", "bmm(out_dtype=...) is refused for devices not listed."
    ),
    Gate(
        name="check_multiple_devices_or_any_cpu_nodes",
        modules=("torch._inductor.cudagraph_utils",),
        why="mode='reduce-overhead' skips graphs, silently, unless their one device is a CUDA device.",
        replace=_one_device_may_be_mtia,
        is_needed=lambda original: original({torch.device("mtia", 0): None}) is not None,
    ),
    Gate(
        name="cudagraphify",
        modules=("torch._inductor.compile_fx",),
        why="mode='reduce-overhead' records and replays CUDA graphs only. The other way in, config.cudagraph_policy, "
        "takes whole functions and not the parts between what cannot be captured.",
        replace=_graphs_on_mtia,
        is_needed=lambda original: "cudagraph_trees" in inspect.getsource(original),
    ),
    Gate(
        name="maybe_handle_backward_generation",
        modules=("torch._inductor.output_code",),
        why="A backward that is not recorded looks for the CUDA graphs of its forward, and asserts there are some.",
        replace=_backward_without_trees,
        is_needed=lambda original: "cudagraph_trees" in inspect.getsource(original),
    ),
)

originals: dict[tuple[str, str], Any] = {}
"""What was replaced, by module and name."""
_replaced: dict[int, tuple[Any, Any]] = {}
"""By id, replacements and what they replaced: for modules that import a name by value after it was replaced."""


def _open(gate: Gate, module: ModuleType) -> None:
    key = (module.__name__, gate.name)
    if key not in originals:
        *owner, attribute = gate.name.split(".")
        holder = functools.reduce(getattr, owner, module)
        present = getattr(holder, attribute, None)
        _, originals[key] = _replaced.get(id(present), (present, present))
        if originals[key] is present:
            replacement = gate.replace(present)
            _replaced[id(replacement)] = (replacement, present)
            setattr(holder, attribute, replacement)


def apply(torch_version: str, gates: Sequence[Gate] = GATES) -> None:
    """Opens the gates of this version of PyTorch, now or when their modules are imported."""
    major, minor = (int(part) for part in torch_version.split(".")[:2])
    for gate in gates:
        if (major, minor) in gate.versions:
            for name in gate.modules:
                after_import(name, functools.partial(_open, gate))
