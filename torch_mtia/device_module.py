"""`torch.NAME` for the name given to `torch_mtia.privateuse1.enable`: the functions of `torch.mtia`.

Mirrors torch/mtia/__init__.py, memory.py and mtia_graph.py, whose functions are for the device type mtia only.
Wherever a function takes a device it may be an index, a `torch.device`, its string, or None for the current device;
one of another type is a ValueError.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch._C import _acceleratorGraph

from torch_mtia import _C, streams
from torch_mtia.backend import device_type

__all__ = [
    *("Event", "MTIAGraph", "Stream", "StreamContext", "attach_out_of_memory_observer", "current_device"),
    *("current_stream", "default_generators", "default_stream", "device", "device_count", "empty_cache"),
    *("get_amp_supported_dtype", "get_device_capability", "get_device_name", "get_device_properties"),
    *("get_rng_state",),
    *("get_rng_state_all", "graph", "graph_pool_handle", "init", "initial_seed", "is_available", "is_bf16_supported"),
    *("is_current_stream_capturing", "is_initialized", "manual_seed", "manual_seed_all", "max_memory_allocated"),
    *("memory_allocated", "memory_stats", "record_memory_history", "reset_peak_memory_stats", "seed", "seed_all"),
    *("set_device", "set_rng_state", "set_rng_state_all", "set_stream", "snapshot", "stream", "synchronize"),
]

Device = torch.device | int | str | None
Pool = tuple[int, int]

Event = torch.Event
Stream = torch.Stream

_lock = threading.Lock()
default_generators: tuple[torch.Generator, ...] = tuple(_C._default_generator(i) for i in range(_C._device_count()))


def _index(device: Any) -> int:
    if device is None:
        return current_device()
    if isinstance(device, int):
        return device
    resolved = torch.device(device)
    if resolved.type != device_type():
        raise ValueError(f"device must be of type {device_type()}, not {resolved}")
    return current_device() if resolved.index is None else resolved.index


# Devices


def _is_compiled() -> bool:
    return True


def _is_in_bad_fork() -> bool:
    return _C._is_in_bad_fork()


def _lazy_init() -> None:
    if _is_in_bad_fork():
        raise RuntimeError(
            f"Cannot re-initialize {device_type()} in forked subprocess. To use it with multiprocessing, you must use "
            "the 'spawn' start method"
        )
    with _lock:
        _C._initialize()
        while _at_the_first_use:
            _at_the_first_use.pop(0)()


_at_the_first_use: list[Callable[[], object]] = []


def _lazy_call(function: Callable[[], object]) -> None:
    """Calls the function once the devices are initialized."""
    if is_initialized():
        function()
    else:
        _at_the_first_use.append(function)


def init() -> None:
    """Initializes the devices, which their first use does otherwise."""
    _lazy_init()


def is_initialized() -> bool:
    """Returns whether the devices are initialized."""
    return _C._is_initialized() and not _is_in_bad_fork()


def __getattr__(name: str) -> Any:
    if name == "_initialized":  # torch.utils.checkpoint saves the random numbers' state only of modules that have it
        return is_initialized()
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")


def is_available() -> bool:
    """Returns whether there is a device."""
    return device_count() > 0


def is_bf16_supported(including_emulation: bool = True) -> bool:  # noqa: ARG001 - as torch.mtia
    """True."""
    return True


def device_count() -> int:
    """Returns the number of devices, without initializing them."""
    return _C._device_count()


def current_device() -> int:
    """Returns the index of this thread's current device."""
    return _C._current_device()


def set_device(device: Device) -> None:
    """Sets this thread's current device; a negative index changes nothing."""
    index = _index(device)
    if index >= 0:
        torch.accelerator.set_device_index(index)


_exchange_device = torch._C._mtia_exchangeDevice
_maybe_exchange_device = torch._C._mtia_maybeExchangeDevice


class device:
    """A context with another current device; with a negative index, with the same."""

    def __init__(self, device: Device) -> None:
        self.idx = _index(device)
        self.prev_idx = -1

    def __enter__(self) -> None:
        self.prev_idx = _maybe_exchange_device(self.idx)

    def __exit__(self, *_error: object) -> None:
        _maybe_exchange_device(self.prev_idx)


def get_device_capability(device: Device = None) -> tuple[int, int]:
    """Returns the major and the minor number of a device's capability."""
    return torch._C._mtia_getDeviceCapability(_index(device))


def get_device_name(device: Device = None) -> str:
    """Returns the name of a device."""
    return str(get_device_properties(device)["name"])


def get_device_properties(device: Device = None) -> dict[str, Any]:
    """Returns a device's properties, by key and by attribute.

    They are name, architecture, total_memory (bytes), L2_cache_size (bytes), multi_processor_count (cores), warp_size,
    major, minor, max_grid_height and max_grid_width.
    """
    return torch._C._mtia_getDeviceProperties(_index(device))


def get_amp_supported_dtype() -> list[torch.dtype]:
    """Returns the dtypes that autocast supports."""
    return [torch.float16, torch.bfloat16]


def synchronize(device: Device = None) -> None:
    """Waits for all work of a device, and raises its first error."""
    _lazy_init()
    torch.accelerator.synchronize(_index(device))


# Streams


def current_stream(device: Device = None) -> torch.Stream:
    """This thread's current stream on a device."""
    return torch.accelerator.current_stream(_index(device))


def default_stream(device: Device = None) -> torch.Stream:
    """Returns the default stream of a device."""
    _lazy_init()
    return _C._default_stream(_index(device))


def set_stream(stream: torch.Stream | None) -> None:
    """Makes a stream the current one of its device, and its device the current one."""
    if stream is not None:
        torch.accelerator.set_stream(stream)


def _set_stream_by_id(stream_id: int, device_index: int, device_type: int) -> None:
    set_stream(torch.Stream(stream_id=stream_id, device_index=device_index, device_type=device_type))


class StreamContext:
    """A context in which a stream is current; with None, nothing changes."""

    def __init__(self, stream: torch.Stream | None) -> None:
        self.stream = stream
        self._previous: list[torch.Stream] = []

    def __enter__(self) -> None:
        if self.stream is not None:
            previous = [current_stream(), current_stream(self.stream.device)]
            set_stream(self.stream)
            self._previous = previous

    def __exit__(self, *_error: object) -> None:
        while self._previous:
            set_stream(self._previous.pop())


def stream(stream: torch.Stream | None) -> StreamContext:
    """Returns a context in which `stream` is current."""
    return StreamContext(stream)


def is_current_stream_capturing() -> bool:
    """Returns whether the current stream of the current device is being captured in a graph."""
    current = current_stream() if is_initialized() else None
    return current is not None and _C._is_stream_capturing(current.stream_id, current.device_index)


_sleep = streams.sleep


# Memory


def empty_cache() -> None:
    """Returns the allocator's cached memory to the device."""
    torch.accelerator.empty_cache()


def memory_stats(device: Device = None) -> dict[str, Any]:
    """Returns what `torch.accelerator.memory_stats` does, and bytes under "dram"; nothing until a device is in use."""
    return dict(torch._C._mtia_memoryStats(_index(device))) if is_initialized() else {}


def memory_allocated(device: Device = None) -> int:
    """Returns the bytes that tensors occupy."""
    return int(memory_stats(device).get("dram", {}).get("allocated_bytes", 0))


def max_memory_allocated(device: Device = None) -> int:
    """Returns the peak of `memory_allocated`, since the start or the last `reset_peak_memory_stats`."""
    return int(memory_stats(device).get("dram", {}).get("peak_bytes", 0))


def reset_peak_memory_stats(device: Device = None) -> None:
    """Resets the peak of `max_memory_allocated`."""
    if is_initialized():
        torch.accelerator.reset_peak_memory_stats(_index(device))


def record_memory_history(enabled: str | None = "all", stacks: str = "python", max_entries: int = 0) -> None:
    """Starts or stops recording what the allocator does: see `torch.mtia.record_memory_history` and docs/memory.md."""
    if is_initialized():
        torch._C._mtia_recordMemoryHistory(enabled, stacks, max_entries)


def snapshot() -> dict[str, Any]:
    """Returns the allocator's blocks and history, in the format of PyTorch's memory viewer."""
    return torch._C._mtia_memorySnapshot()


def attach_out_of_memory_observer(observer: Callable[[int, int, int, int], None]) -> None:
    """Registers `observer(device, requested, reserved, free)`, in bytes, to be called before an out-of-memory error."""
    torch._C._mtia_attachOutOfMemoryObserver(observer)


# Random numbers


def get_rng_state(device: Device = None) -> torch.Tensor:
    """Returns the state of a device's default generator, as a byte tensor on the CPU."""
    _lazy_init()
    return default_generators[_index(device)].get_state()


def get_rng_state_all() -> list[torch.Tensor]:
    """Returns the states of all devices."""
    return [generator.get_state() for generator in default_generators]


def set_rng_state(new_state: torch.Tensor, device: Device = None) -> None:
    """Sets the state of a device's default generator."""
    default_generators[_index(device)].set_state(new_state)


def set_rng_state_all(new_states: list[torch.Tensor]) -> None:
    """Sets the states of all devices."""
    for index, state in enumerate(new_states):
        set_rng_state(state, index)


def manual_seed(seed: int) -> None:
    """Seeds the current device's default generator."""
    default_generators[current_device()].manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    """Seeds the default generators of all devices."""
    for generator in default_generators:
        generator.manual_seed(int(seed))


def seed() -> int:
    """Seeds the current device's default generator with a random number, and returns the number."""
    return default_generators[current_device()].seed()


def seed_all() -> int:
    """Seeds the default generators of all devices with one random number, and returns the number."""
    number = default_generators[0].seed()
    manual_seed_all(number)
    return number


def initial_seed() -> int:
    """Returns the seed of the current device's default generator."""
    return default_generators[current_device()].initial_seed()


# Graphs


def graph_pool_handle() -> Pool:
    """Returns a new memory pool for graphs."""
    return torch._C._mtia_graphPoolHandle()


class MTIAGraph(_acceleratorGraph):
    """A captured sequence of work. With `keep_graph`, `instantiate` or the first `replay` instantiates it."""

    def __new__(cls, keep_graph: bool = False) -> MTIAGraph:
        return super().__new__(cls, keep_graph)

    def __init__(self, keep_graph: bool = False) -> None:
        super().__init__(keep_graph)

    def capture_begin(self, pool: Pool = (0, 0)) -> None:  # type: ignore[override] # as torch.mtia.MTIAGraph
        """Starts to capture the current stream. Memory comes from `pool`, or from a new pool if it is (0, 0)."""
        super().capture_begin(pool=None if tuple(pool) == (0, 0) else pool, capture_error_mode="default")


class graph:
    """A context in which the work of a stream, or of the current one, is captured in `mtia_graph`."""

    def __init__(self, mtia_graph: MTIAGraph, pool: Pool | None = None, stream: torch.Stream | None = None) -> None:
        self.mtia_graph = mtia_graph
        self.pool = (0, 0) if pool is None else pool
        self.stream_ctx = StreamContext(current_stream() if stream is None else stream)

    def __enter__(self) -> None:
        synchronize()
        empty_cache()
        self.stream_ctx.__enter__()
        self.mtia_graph.capture_begin(self.pool)

    def __exit__(self, *error: object) -> None:
        self.mtia_graph.capture_end()
        self.stream_ctx.__exit__(*error)
