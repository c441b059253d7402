"""Graphs for `torch.compile(mode="reduce-overhead")`: what Inductor calls cudagraphs. See docs/graphs.md.

Inductor hands each compiled function to `cudagraphify` in torch/_inductor/compile_fx.py, and calls what that returns in
its place. A gate leads functions on mtia here. The contract is upstream's: a function takes a list of tensors and
integers, which it may empty, and returns a sequence; `static_input_idxs` are inputs whose addresses stay, such as
parameters; `mutated_input_idxs` are inputs that it writes.

Note [Recordings]
The first call of a function runs as it is: kernels are tuned then. A later call records a graph if there is none for
its integers (dynamic shapes) and for the addresses of its static inputs, and replays it. Other inputs are copied to
where the graph reads them, unless they are results of another graph that are in place already: so what a forward saves
for its backward is not copied. Upstream calls that static too; here an input is static until its address changes or it
turns out to be a result. Results are the graph's own memory; those that are still in use when it is replayed
again move away first (Note [Results of graphs] in csrc/python/graph_outputs.cpp).
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._dynamo.utils import counters
from torch._inductor import config
from torch._inductor.compile_fx import index_expanded_dims_and_copy_
from torch._inductor.cudagraph_utils import log_cudagraph_skip_and_bump_counter
from torch._inductor.output_code import get_expanded_dims

from torch_mtia import _C
from torch_mtia.door import device_module, device_type

Model = Callable[[list[Any]], Sequence[Any]]
Key = tuple[int, ...]
Output = Callable[[Sequence[torch.Tensor], Sequence[Any]], Any]  # of the graph's results and the call's inputs

_thread = threading.local()


def _pool() -> tuple[int, int]:
    """One for each thread: its graphs run one after the other, so they can share memory."""
    if not hasattr(_thread, "pool"):
        _thread.pool = device_module().graph_pool_handle()
    pool: tuple[int, int] = _thread.pool
    return pool


def _copy(target: torch.Tensor, source: torch.Tensor) -> None:
    index_expanded_dims_and_copy_(target, source, get_expanded_dims(target))


class Refused(Exception):
    """A call that a graph cannot stand for; the text says why."""


def _constant(value: Any, _results: Sequence[torch.Tensor], _inputs: Sequence[Any]) -> Any:
    return value


def _view(source: int, like: torch.Tensor, _results: Sequence[torch.Tensor], inputs: Sequence[Any]) -> torch.Tensor:
    return torch.as_strided(inputs[source], like.shape, like.stride(), like.storage_offset())


def _result(place: int, results: Sequence[torch.Tensor], _inputs: Sequence[Any]) -> torch.Tensor:
    return results[place]


class _Recording:
    """A graph of one function, for one key."""

    def __init__(self, model: Model, inputs: Sequence[Any], static: set[int], mutated: frozenset[int]) -> None:
        self.graph = device_module().MTIAGraph()
        self.inputs: list[Any] = []
        self.in_place: list[int] = []  # inputs that are where another graph writes its results
        self.copied: list[int] = []
        for index, given in enumerate(inputs):
            self.inputs.append(self._place(index, given, index in static))
        self.written_back = [index for index in self.copied if index in mutated]
        stream = device_module().current_stream()
        self.graph.capture_begin(_pool())
        try:
            outputs = model(list(self.inputs))
        finally:
            with device_module().stream(stream):
                self.graph.capture_end()
        self._take(outputs)

    def _place(self, index: int, given: Any, is_static: bool) -> Any:
        """What the graph reads for an input."""
        if not isinstance(given, torch.Tensor):
            return given
        if given.device.type != device_type():
            raise Refused(f"input {index} is on {given.device}: its value would be that of the recording for ever")
        if is_static:
            return given
        captured = _C.GraphOutputs.captured(given)
        if captured is not None:
            self.in_place.append(index)
            return captured
        self.copied.append(index)
        target = torch.empty_strided(given.shape, given.stride(), dtype=given.dtype, device=given.device)
        _copy(target, given)
        return target

    def _take(self, outputs: Sequence[Any]) -> None:
        """Sorts the outputs: results of the graph, views of inputs, and what is no tensor."""
        inputs = {
            tensor.untyped_storage().data_ptr(): index
            for index, tensor in enumerate(self.inputs)
            if isinstance(tensor, torch.Tensor)
        }
        results: list[torch.Tensor] = []
        self.outputs: list[Output] = []
        for output in outputs:
            if not isinstance(output, torch.Tensor) or output.numel() == 0:
                self.outputs.append(functools.partial(_constant, output))
            elif (source := inputs.get(output.untyped_storage().data_ptr())) is not None:
                self.outputs.append(functools.partial(_view, source, output))
            elif output.device.type == device_type():
                self.outputs.append(functools.partial(_result, len(results)))
                results.append(output)
            else:
                raise Refused(f"an output is on {output.device}")
        self.results = _C.GraphOutputs(results)

    def __call__(self, inputs: list[Any]) -> list[Any]:
        for index in self.copied:
            _copy(self.inputs[index], inputs[index])
        for index in self.in_place:
            if self.inputs[index].data_ptr() != inputs[index].data_ptr():
                _C.GraphOutputs.move_away_from(self.inputs[index])
                _copy(self.inputs[index], inputs[index])
        given = list(inputs)
        inputs.clear()
        self.results.move_away()
        self.graph.replay()
        for index in self.written_back:
            given[index].copy_(self.inputs[index])
        results = self.results.hand_out()
        return [output(results, given) for output in self.outputs]


class _Function:
    """One compiled function, as one thread calls it."""

    def __init__(self, model: Model, static: Sequence[int], mutated: Sequence[int]) -> None:
        self.model = model
        self.static = set(static)
        self.addresses: dict[int, int] = {}  # of static inputs
        self.mutated = frozenset(mutated)
        self.recordings: dict[Key, _Recording] = {}
        self.is_warm = False
        self.is_refused = False

    def __call__(self, inputs: list[Any]) -> Sequence[Any]:
        if self.is_refused:
            return self.model(inputs)
        if not self.is_warm:
            self.is_warm = True
            return self.model(inputs)
        recording = self.recordings.get(self._key(inputs)) or self._record(inputs)
        return self.model(inputs) if recording is None else recording(inputs)

    def _key(self, inputs: list[Any]) -> Key:
        return tuple(
            value if isinstance(value, int) else value.data_ptr()
            for index, value in enumerate(inputs)
            if isinstance(value, int) or (index in self.static and isinstance(value, torch.Tensor))
        )

    def _forget_what_moves(self, inputs: list[Any]) -> None:
        """Inputs that are not static after all are copied from now on, or read where another graph writes them."""
        tensors = {index: inputs[index] for index in self.static if isinstance(inputs[index], torch.Tensor)}
        moving = {
            index
            for index, tensor in tensors.items()
            if self.addresses.setdefault(index, tensor.data_ptr()) != tensor.data_ptr()
            or _C.GraphOutputs.captured(tensor) is not None
        }
        if moving:
            self.static -= moving
            self.recordings.clear()

    def _record(self, inputs: list[Any]) -> _Recording | None:
        self._forget_what_moves(inputs)
        limit = config.triton.cudagraph_unexpected_rerecord_limit
        try:
            if len(self.recordings) > limit:
                raise Refused(f"{limit} recordings, of as many shapes or addresses of parameters")
            recording = _Recording(self.model, inputs, self.static, self.mutated)
        except (Refused, RuntimeError) as error:
            self.is_refused = True
            log_cudagraph_skip_and_bump_counter(f"skipping cudagraphs due to {error}")
            return None
        counters["inductor"]["mtia_graphs_recorded"] += 1
        self.recordings[self._key(inputs)] = recording
        return recording


_functions: weakref.WeakSet[_Function] = weakref.WeakSet()


def forget_recordings() -> None:
    """Destroys all recordings and gives their memory back; functions that are called again record again.

    Without it they live as long as Inductor's cache of generated code, which is as long as the process.
    """
    for function in list(_functions):
        function.recordings.clear()


def graphify(model: Model, static_input_idxs: Sequence[int], mutated_input_idxs: Sequence[int]) -> Model:
    """What is called in place of a compiled function; see Note [Recordings]. Each thread has graphs of its own."""
    of_thread = threading.local()

    def run(inputs: list[Any]) -> Sequence[Any]:
        if not hasattr(of_thread, "function"):
            of_thread.function = _Function(model, static_input_idxs, mutated_input_idxs)
            _functions.add(of_thread.function)
        outputs: Sequence[Any] = of_thread.function(inputs)
        return outputs

    return run


def is_on_mtia(inputs: Sequence[Any]) -> bool:
    """Whether a compiled function that is called with these is one on mtia."""
    tensors = [value for value in inputs if isinstance(value, torch.Tensor)]
    if tensors:
        return any(tensor.device.type == device_type() for tensor in tensors)
    accelerator = torch.accelerator.current_accelerator()
    return accelerator is not None and accelerator.type == device_type()
