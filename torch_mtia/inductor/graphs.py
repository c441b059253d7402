"""Graphs for `torch.compile(mode="reduce-overhead")`: what Inductor calls cudagraphs. See docs/graphs.md.

Inductor hands each compiled function to `cudagraphify` in torch/_inductor/compile_fx.py, and calls what that returns in
its place. A gate leads functions on mtia here. The contract is upstream's: a function takes a list of tensors and
integers, which it may empty, and returns a sequence; `static_input_idxs` are inputs whose addresses stay, such as
parameters; `mutated_input_idxs` are inputs that it writes.

Note [Recordings]
The first call of a function runs as it is: kernels are tuned then. A later call records a graph if there is none for
its integers, the layouts of its tensors (dynamic shapes) and the addresses of its static inputs, and replays it. Other
inputs are copied to where the graph reads them, unless they are results of another graph that are in place already: so
what a forward saves for its backward is not copied. Upstream calls that static too; here an input is static until its
address changes or it turns out to be a result. Where such a result lies elsewhere in a later call, because it has moved
away or another thread computed it, a second recording serves, which copies all inputs. Results are the graph's own
memory; those that are still in use move away before a replay can write over them (Note [Results of graphs] in
csrc/device/GraphOutputs.h).

Note [Threads]
A thread writes only over memory of its own recordings, but it may read results of another thread's where they are:
autograd's thread does. So a thread that replays first moves its results that are in use away, and then submits the
replay after all that was submitted before; a thread that reads results in place checks that they are still there, and
submits its work, in one step.

Note [Outputs over inputs]
An output over the memory of an input becomes one over that of the call's input, wherever it lies: what the recording
says is how far from the start of the input the output starts. The function may have written that memory, also where
`mutated_input_idxs` does not say so: Inductor computes in place of what is not read again, if it is an intermediate
result that a part of a function passes to the next, or what a forward saved for its backward ("donated buffers").
"""

from __future__ import annotations

import dataclasses
import functools
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._C._dynamo.guards import _reinterpret_tensor as reinterpret_tensor  # type: ignore[attr-defined]
from torch._dynamo.utils import counters
from torch._inductor import config
from torch._inductor.compile_fx import index_expanded_dims_and_copy_
from torch._inductor.cudagraph_utils import PlaceholderInfo, log_cudagraph_skip_and_bump_counter
from torch._inductor.output_code import get_expanded_dims
from torch._inductor.utils import ALIGNMENT, align_inputs_from_check_idxs
from torch.utils._ordered_set import OrderedSet

from torch_mtia import _C
from torch_mtia.backend import device_module, device_type
from torch_mtia.graphs import is_stream_capturing

Model = Callable[[list[Any]], Sequence[Any]]
Key = tuple[Any, ...]
Output = Callable[[Sequence[torch.Tensor], Sequence[Any]], Any]  # of the graph's results and the call's inputs

_thread = threading.local()


_submission = threading.RLock()  # see Note [Threads]


def _pool() -> tuple[int, int]:
    """Returns the memory pool of a thread and device: its graphs run one after the other, so they can share memory."""
    pools: dict[int, tuple[int, int]] = _thread.__dict__.setdefault("pools", {})
    device = device_module().current_device()
    if device not in pools:
        pools[device] = device_module().graph_pool_handle()
    return pools[device]


def _capture_stream() -> torch.Stream:
    """Returns a stream of this thread and device, which no program is given: work on other streams is not captured."""
    streams: dict[int, torch.Stream] = _thread.__dict__.setdefault("capture_streams", {})
    device = device_module().current_device()
    if device not in streams:
        streams[device] = _C._recording_stream(device)
    return streams[device]


def _copy(target: torch.Tensor, source: torch.Tensor) -> None:
    index_expanded_dims_and_copy_(target, source, get_expanded_dims(target))


def _untracked(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the same memory, which autograd does not see to be written: it does not see what kernels write either."""
    return reinterpret_tensor(tensor, tuple(tensor.shape), tensor.stride(), 0)  # type: ignore[no-any-return]


class Refused(Exception):
    """A call that a graph cannot stand for; the text says why."""


def _range(tensor: torch.Tensor) -> range:
    """Returns the bytes of its storage that it lies in."""
    start = tensor.storage_offset() * tensor.itemsize
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return range(start, start + (last + 1) * tensor.itemsize if tensor.numel() else start)


def _overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.untyped_storage().data_ptr() != other.untyped_storage().data_ptr():
        return False
    return max(_range(one).start, _range(other).start) < min(_range(one).stop, _range(other).stop)


def _constant(value: Any, _results: Sequence[torch.Tensor], _inputs: Sequence[Any]) -> Any:
    return value


def _empty(like: torch.Tensor, _results: Sequence[torch.Tensor], _inputs: Sequence[Any]) -> torch.Tensor:
    return torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=like.device)


def _toggled(tensor: torch.Tensor, conjugates: bool, negates: bool) -> torch.Tensor:
    """Returns the same memory, read as its conjugates or negatives, or no longer so."""
    tensor = tensor.conj() if conjugates else tensor
    return torch._neg_view(tensor) if negates else tensor


class _Result:
    """An output that the graph computes."""

    def __init__(self, place: int, output: torch.Tensor) -> None:
        self.place = place
        self.lazily = output.is_conj(), output.is_neg()

    def __call__(self, results: Sequence[torch.Tensor], _inputs: Sequence[Any]) -> torch.Tensor:
        return _toggled(results[self.place], *self.lazily)


def _input(source: int, _results: Sequence[torch.Tensor], inputs: Sequence[Any]) -> Any:
    return inputs[source]


class _View:
    """An output over the memory of an input: see Note [Outputs over inputs]."""

    def __init__(self, source: int, recorded: torch.Tensor, output: torch.Tensor) -> None:
        self.source = source
        self.shape, self.stride, self.dtype = tuple(output.shape), output.stride(), output.dtype
        self.distance = _range(output).start - _range(recorded).start  # in bytes
        self.lazily = output.is_conj() != recorded.is_conj(), output.is_neg() != recorded.is_neg()

    def __call__(self, _results: Sequence[torch.Tensor], inputs: Sequence[Any]) -> torch.Tensor:
        given: torch.Tensor = inputs[self.source]
        if given.dtype == self.dtype:
            view = reinterpret_tensor(given, self.shape, self.stride, self.distance // given.itemsize)
        else:
            place, rest = divmod(_range(given).start + self.distance, self.dtype.itemsize)
            if rest:
                raise RuntimeError(
                    f"an input's storage_offset() must be divisible by {self.dtype.itemsize // given.itemsize} to view "
                    f"it as {self.dtype} (different element sizes), but got {given.storage_offset()}"
                )
            view = torch.empty(0, dtype=self.dtype, device=given.device)
            view.set_(given.untyped_storage(), place, self.shape, self.stride)
        return _toggled(view, *self.lazily)


@dataclasses.dataclass(frozen=True)
class Traits:
    """What is known of a function. `static` and `mutated`: indices of inputs, as upstream says; `reused`: of those that
    it may write without saying so, None for any, see Note [Outputs over inputs]; `device`: on which all its work is,
    whichever is the current one when it is called."""

    static: frozenset[int]
    mutated: frozenset[int]
    reused: frozenset[int] | None = frozenset()
    device: int = 0

    def may_write(self, index: int) -> bool:
        return index in self.mutated or self.reused is None or index in self.reused


class _Recording:
    """A graph of one function, for one key."""

    def __init__(
        self, model: Model, inputs: Sequence[Any], static: set[int], traits: Traits, *, copies_all: bool
    ) -> None:
        self.graph = device_module().MTIAGraph()
        self.inputs: list[Any] = []
        self.in_place: list[int] = []  # inputs that are where another graph writes its results
        self.copied: list[int] = []
        for index, given in enumerate(inputs):
            self.inputs.append(self._place(index, given, index in static, copies_all))
        stream = _capture_stream()
        with device_module().stream(stream):
            self.graph.capture_begin(_pool())
            refusal = ""
            try:
                outputs = model(list(self.inputs))
            finally:
                with device_module().stream(stream):
                    refusal = _C._capture_refusal(stream.stream_id, stream.device_index)
                    self.graph.capture_end()
                if refusal:
                    raise Refused(refusal)
        viewed = self._take(outputs)
        self.written = [
            index for index in self.copied if index in traits.mutated or (index in viewed and traits.may_write(index))
        ]

    def _place(self, index: int, given: Any, is_static: bool, copies: bool) -> Any:
        """Returns what the graph reads for an input."""
        if not isinstance(given, torch.Tensor):
            return given
        if given.device.type != device_type():
            raise Refused(f"input {index} is on {given.device}: its value would be that of the recording for ever")
        if is_static:
            return given
        captured = None if copies else _C.GraphOutputs.captured(given)
        if captured is not None and self._can_stay(captured, given):
            self.in_place.append(index)
            return captured
        self.copied.append(index)
        target = torch.empty_strided(given.shape, given.stride(), dtype=given.dtype, device=given.device)
        _copy(target, given)
        return target

    def _can_stay(self, captured: torch.Tensor, given: torch.Tensor) -> bool:
        """Whether it can be read in place. Two inputs that overlap may be apart in the next call, and kernels that
        write an input rely on its alignment."""
        is_apart = not any(_overlap(captured, self.inputs[other]) for other in self.in_place)
        return is_apart and captured.data_ptr() % ALIGNMENT == 0 and not (given.is_conj() or given.is_neg())

    def _source(self, output: torch.Tensor) -> int | None:
        """Returns the input that an output is, or whose memory it lies in. Where inputs share a storage, either they
        are static, and any of them will do, or they do not overlap."""
        sources = [
            index
            for index, tensor in enumerate(self.inputs)
            if isinstance(tensor, torch.Tensor)
            and tensor.untyped_storage().data_ptr() == output.untyped_storage().data_ptr() != 0
        ]
        same = [index for index in sources if self.inputs[index] is output]
        around = [index for index in sources if _range(output).start in _range(self.inputs[index])]
        return next(iter(same + around + sources), None)

    def _take(self, outputs: Sequence[Any]) -> set[int]:
        """Sorts the outputs: results of the graph, views of inputs, and what is no tensor. Returns those inputs."""
        viewed: set[int] = set()
        results: list[torch.Tensor] = []
        self.outputs: list[Output] = []
        for output in outputs:
            if not isinstance(output, torch.Tensor):
                self.outputs.append(functools.partial(_constant, output))
            elif (source := self._source(output)) is not None:
                viewed.add(source)
                is_same = output is self.inputs[source]
                self.outputs.append(
                    functools.partial(_input, source) if is_same else _View(source, self.inputs[source], output)
                )
            elif output.device.type != device_type():
                raise Refused(f"an output is on {output.device}")
            elif output.numel() == 0:
                self.outputs.append(functools.partial(_empty, output))
            else:
                self.outputs.append(_Result(len(results), output))
                results.append(_toggled(output, output.is_conj(), output.is_neg()))
        self.results = _C.GraphOutputs(results, self.graph.pool())
        return viewed

    def fits(self, inputs: Sequence[Any]) -> bool:
        """Whether what it reads in place is there."""
        return all(self.inputs[index].data_ptr() == inputs[index].data_ptr() for index in self.in_place)

    def __call__(self, inputs: list[Any]) -> list[Any] | None:
        """Returns the outputs; None: another thread has moved an input meanwhile."""
        device = device_module().current_device()
        # What is written now may have been written or read in other streams.
        _C._wait_for_other_streams(device)
        for index in self.copied:
            _copy(self.inputs[index], inputs[index])
        self.results.move_away()
        with _submission:
            if not self.fits(inputs):
                return None
            _C._wait_for_other_streams(device)
            self.graph.replay()
        given = list(inputs)
        inputs.clear()
        for index in self.written:
            _copy(_untracked(given[index]), self.inputs[index])
        results = self.results.hand_out()
        return [output(results, given) for output in self.outputs]


class _Function:
    """One compiled function, as one thread calls it."""

    def __init__(self, model: Model, traits: Traits) -> None:
        # Kernels rely on the alignment of what they write, as upstream makes sure where it records nothing.
        self.model = align_inputs_from_check_idxs(model, sorted(traits.mutated), OrderedSet(traits.mutated))
        self.traits = traits
        self.static = set(traits.static)
        self.addresses: dict[int, int] = {}  # of static inputs
        self.recordings: dict[Key, list[_Recording]] = {}  # the second of a key copies all inputs
        self.is_warm = False
        self.is_refused = False

    def __call__(self, inputs: list[Any]) -> Sequence[Any]:
        stream = device_module().current_stream()
        has_list = any(isinstance(value, list) for value in inputs)  # the results of a loop that is no part of a graph
        if self.is_refused or has_list or is_stream_capturing(stream):
            return self.model(inputs)
        if not self.is_warm:
            outputs = self.model(inputs)
            self.is_warm = True
            return outputs
        while (recording := self._find(inputs) or self._record(inputs)) is not None:
            replayed = recording(inputs)
            if replayed is not None:
                return replayed
        return self.model(inputs)

    def _find(self, inputs: list[Any]) -> _Recording | None:
        known = self.recordings.get(self._key(inputs), ())
        return next((recording for recording in known if recording.fits(inputs)), None)

    def _key(self, inputs: list[Any]) -> Key:
        return tuple(
            value
            if not isinstance(value, torch.Tensor)
            else value.data_ptr()
            if index in self.static
            else (value.shape, value.stride())
            for index, value in enumerate(inputs)
        )

    def _forget_what_moves(self, inputs: list[Any]) -> None:
        """Inputs that are not static after all are copied from now on, or read where another graph writes them."""
        tensors = {index: inputs[index] for index in self.static if isinstance(inputs[index], torch.Tensor)}
        moving = {
            index
            for index, tensor in tensors.items()
            if self.addresses.setdefault(index, tensor.data_ptr()) != tensor.data_ptr()
            or _C.GraphOutputs.captured(tensor) is not None
            or (index in self.traits.mutated and tensor.data_ptr() % ALIGNMENT)
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
            known = self.recordings.setdefault(self._key(inputs), [])
            recording = _Recording(self.model, inputs, self.static, self.traits, copies_all=bool(known))
        except Refused as error:
            self.is_refused = True
            log_cudagraph_skip_and_bump_counter(f"skipping cudagraphs due to {error}")
            return None
        except RuntimeError as error:  # memory ran out, say, and there may be enough in a later call
            log_cudagraph_skip_and_bump_counter(f"skipping cudagraphs in this call due to {error}")
            return None
        counters["inductor"]["mtia_graphs_recorded"] += 1
        known.append(recording)
        return recording


_functions: weakref.WeakSet[_Function] = weakref.WeakSet()


def forget_recordings() -> None:
    """Destroys the graphs of all functions compiled with `mode="reduce-overhead"`, and frees their memory.

    Functions that are called again record again. Otherwise the graphs live as long as Inductor's cache of generated
    code, which is as long as the process.
    """
    for function in list(_functions):
        function.recordings.clear()


def traits(
    static_input_idxs: Sequence[int],
    *,
    device_index: int,
    is_backward: bool = False,
    placeholders: Sequence[PlaceholderInfo] = (),
    mutated_input_idxs: Sequence[int] = (),
    **_options: Any,
) -> Traits:
    """From the arguments of upstream's `cudagraphify`. The inputs of a part of a function that are none of the whole
    function have no users there (get_partition_cudagraph_metadata)."""
    intermediate = frozenset(index for index, placeholder in enumerate(placeholders) if not placeholder.users)
    reused = None if is_backward else intermediate
    return Traits(frozenset(static_input_idxs), frozenset(mutated_input_idxs), reused, device_index)


def graphify(model: Model, traits: Traits) -> Model:
    """Returns what is called in place of a compiled function; see Note [Recordings]. Each thread has graphs of its
    own."""
    of_thread = threading.local()

    def run(inputs: list[Any]) -> Sequence[Any]:
        if not hasattr(of_thread, "function"):
            of_thread.function = _Function(model, traits)
            _functions.add(of_thread.function)
        with device_module().device(traits.device):
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
