"""Graphs beside what `torch.mtia` and `torch.accelerator` offer: see docs/graphs.md."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, overload

import torch
from torch.autograd.function import once_differentiable
from torch.utils import _pytree as pytree

from torch_mtia import _C
from torch_mtia.backend import device_module, device_type

__all__ = ["is_stream_capturing", "make_graphed_callables"]

Tensors = tuple[torch.Tensor, ...]
CallableT = TypeVar("CallableT", bound=Callable[..., Any])
Pool = tuple[int, int]


def is_stream_capturing(stream: torch.Stream) -> bool:
    """Returns whether the stream, of an mtia device, is being captured in a graph."""
    return _C._is_stream_capturing(stream.stream_id, stream.device_index)


class _GraphedCallable:
    """One callable with the graphs of its forward and its backward, and the tensors that they read and write."""

    def __init__(self, function: Callable[..., Any], sample_args: Sequence[Any], allow_unused_input: bool) -> None:
        arguments, self.argument_spec = pytree.tree_flatten(tuple(sample_args))
        if not all(isinstance(given, torch.Tensor) and given.device.type == device_type() for given in arguments):
            raise TypeError(f"sample_args must hold {device_type()} tensors only, in whatever tuples, lists and dicts")
        self.function = function
        self.allow_unused_input = allow_unused_input
        self.arguments: Tensors = tuple(arguments)
        self.parameters: Tensors = tuple(function.parameters()) if isinstance(function, torch.nn.Module) else ()
        self.outputs: Tensors = ()
        self.differentiable: tuple[bool, ...] = ()  # which of the outputs are
        self.output_spec: pytree.TreeSpec | None = None
        self.output_gradients: tuple[torch.Tensor | None, ...] = ()
        self.input_gradients: tuple[torch.Tensor | None, ...] = ()
        self.forward_graph = device_module().MTIAGraph()
        self.backward_graph: Any = None
        self.calls = 0

    @property
    def inputs(self) -> Tensors:
        return self.arguments + self.parameters

    def run_forward(self) -> None:
        arguments = pytree.tree_unflatten(list(self.arguments), self.argument_spec)
        outputs, self.output_spec = pytree.tree_flatten(self.function(*arguments))
        if not all(isinstance(output, torch.Tensor) for output in outputs):
            raise TypeError("a callable must return tensors only, in whatever tuples, lists and dicts")
        self.outputs = tuple(outputs)
        self.differentiable = tuple(output.requires_grad for output in outputs)

    def prepare_backward(self) -> None:
        self.output_gradients = tuple(
            torch.zeros_like(output) if output.requires_grad else None for output in self.outputs
        )

    def run_backward(self) -> None:
        wanted = [tensor for tensor in self.inputs if tensor.requires_grad]
        gradients = iter(
            torch.autograd.grad(
                [output for output in self.outputs if output.requires_grad],
                wanted,
                [gradient for gradient in self.output_gradients if gradient is not None],
                allow_unused=self.allow_unused_input,
            )
        )
        self.input_gradients = tuple(next(gradients) if tensor.requires_grad else None for tensor in self.inputs)

    def forget_autograd(self) -> None:
        """Drops what autograd keeps for the backward, and with it nodes of the parameters on the capture's stream."""
        self.outputs = tuple(output.detach() for output in self.outputs)

    def __call__(self, *args: Any) -> Any:
        arguments, spec = pytree.tree_flatten(args)
        if spec != self.argument_spec:
            raise TypeError(f"the arguments are not arranged like sample_args: {spec} and {self.argument_spec}")
        outputs = _Replay.apply(self, *arguments, *self.parameters)  # type: ignore[no-untyped-call]
        assert self.output_spec is not None
        return pytree.tree_unflatten(list(outputs), self.output_spec)


def _copy(targets: Sequence[torch.Tensor | None], sources: Sequence[torch.Tensor | None]) -> None:
    """Copies what is not in place already. Sources may lie in the memory of targets."""
    written = {target.untyped_storage().data_ptr() for target in targets if target is not None}
    copies = []
    for target, source in zip(targets, sources, strict=True):
        if target is None or source is None:
            continue
        if target.shape != source.shape or target.dtype != source.dtype:
            raise ValueError(
                f"a graph is of one shape: it was captured with {tuple(target.shape)} {target.dtype}, "
                f"and called with {tuple(source.shape)} {source.dtype}"
            )
        if target.data_ptr() != source.data_ptr() or target.stride() != source.stride():
            copies.append((target, source.clone() if source.untyped_storage().data_ptr() in written else source))
    for target, source in copies:
        target.copy_(source)


class _Replay(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, graphed: _GraphedCallable, *inputs: torch.Tensor) -> Tensors:
        _copy(graphed.arguments, inputs[: len(graphed.arguments)])
        graphed.forward_graph.replay()
        graphed.calls += 1
        ctx.graphed, ctx.call = graphed, graphed.calls
        outputs = tuple(output.detach() for output in graphed.outputs)
        constant = (output for output, varies in zip(outputs, graphed.differentiable, strict=True) if not varies)
        ctx.mark_non_differentiable(*constant)
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        graphed: _GraphedCallable = ctx.graphed
        assert graphed.backward_graph is not None
        if ctx.call != graphed.calls:
            raise RuntimeError(
                "a graphed callable was called again before the backward pass of this call: its graphs have one set of "
                "buffers, and the later call has overwritten what this pass needs. Call backward() after each call, or "
                "make another graphed callable"
            )
        _copy(graphed.output_gradients, gradients)
        graphed.backward_graph.replay()
        # As they are, not detached: autograd copies a gradient that somebody else holds. A parameter whose `grad` were
        # the graph's memory would lose what it has accumulated at the next replay.
        return None, *graphed.input_gradients


def _check(function: Callable[..., Any]) -> None:
    if not isinstance(function, torch.nn.Module):
        return
    if function._forward_hooks or function._forward_pre_hooks or function._backward_hooks:
        raise RuntimeError("modules must have no hooks: a replay would not call them")
    if any(buffer.requires_grad for buffer in function.buffers()):
        raise RuntimeError("buffers of modules must not require gradients: only parameters get them")


def _replayed(function: Callable[..., Any], graphed: _GraphedCallable) -> Callable[..., Any]:
    """Returns a function that replays, or the module itself with its `forward` replaced."""
    if not isinstance(function, torch.nn.Module):
        return graphed
    forward, training = function.forward, function.training

    def forward_or_replay(*args: Any, **kwargs: Any) -> Any:
        return forward(*args, **kwargs) if kwargs or function.training != training else graphed(*args)

    graphed.function = forward  # the module itself would refer to its graphs
    function.forward = forward_or_replay
    return function


@overload
def make_graphed_callables(
    callables: tuple[CallableT, ...],
    sample_args: tuple[tuple[Any, ...], ...],
    num_warmup_iters: int = 3,
    allow_unused_input: bool = False,
    pool: Pool | None = None,
) -> tuple[CallableT, ...]: ...


@overload
def make_graphed_callables(
    callables: CallableT,
    sample_args: tuple[Any, ...],
    num_warmup_iters: int = 3,
    allow_unused_input: bool = False,
    pool: Pool | None = None,
) -> CallableT: ...


def make_graphed_callables(
    callables: Any,
    sample_args: tuple[Any, ...],
    num_warmup_iters: int = 3,
    allow_unused_input: bool = False,
    pool: Pool | None = None,
) -> Any:
    """Returns callables that replay graphs of the given functions' or modules' forward and backward.

    They take part in autograd like the originals. Their outputs are the graph's own tensors: the next call overwrites
    them. A module is returned itself, and replays while `training` is what it was at the capture. Several callables are
    captured in the order of the tuple, their backwards in reverse, and share memory: call them in that order too.
    Mirrors `torch.cuda.make_graphed_callables` (torch/cuda/graphs.py).

    Args:
        callables: one function or `torch.nn.Module`, or a tuple of them.
        sample_args: the positional arguments of the callable, or a tuple with those of each callable: mtia tensors,
            possibly nested in tuples, lists and dicts. Calls must pass the same shapes, dtypes and nesting; their
            values are copied into these tensors. Gradients are computed for the arguments that require them here.
        num_warmup_iters: how many iterations run before the capture.
        allow_unused_input: whether arguments and parameters may have no influence on the outputs; their gradients are
            then None.
        pool: a memory pool to share, from `torch.mtia.graph_pool_handle()` or a graph's `pool()`.

    Raises:
        TypeError: an argument or an output is not a tensor; in a call, the nesting differs.
        ValueError: the numbers of sample_args and of callables differ; in a call, a shape or dtype differs.
        RuntimeError: a module has hooks, or buffers that require gradients; autocast caches casts; an operation in a
            callable cannot be captured; a backward runs after a later call of the same callable.
    """
    if torch.is_autocast_enabled(device_type()) and torch.is_autocast_cache_enabled():
        raise RuntimeError("autocast must not cache casts across graphs: use autocast(..., cache_enabled=False)")
    single = not isinstance(callables, tuple)
    functions: tuple[Callable[..., Any], ...] = (callables,) if single else callables
    all_args = (sample_args,) if single else sample_args
    if len(functions) != len(all_args):
        raise ValueError(f"{len(functions)} callables need as many sample_args, got {len(all_args)}")
    for function in functions:
        _check(function)
    all_graphed = [
        _GraphedCallable(function, args, allow_unused_input) for function, args in zip(functions, all_args, strict=True)
    ]
    pool = device_module().graph_pool_handle() if pool is None else pool
    stream = device_module().Stream()
    stream.wait_stream(device_module().current_stream())
    try:
        with device_module().stream(stream):
            for graphed in all_graphed:
                for _ in range(num_warmup_iters):
                    graphed.run_forward()
                    if any(graphed.differentiable):
                        graphed.prepare_backward()
                        graphed.run_backward()
                graphed.forget_autograd()
    finally:  # of what raises, too: the arguments are freed then
        device_module().current_stream().wait_stream(stream)
    for graphed in all_graphed:
        with device_module().graph(graphed.forward_graph, pool=pool, stream=stream):
            graphed.run_forward()
    for graphed in reversed(all_graphed):
        if any(graphed.differentiable):
            graphed.prepare_backward()
            graphed.backward_graph = device_module().MTIAGraph()
            with device_module().graph(graphed.backward_graph, pool=pool, stream=stream):
                graphed.run_backward()
        graphed.forget_autograd()
    replayed = tuple(_replayed(function, graphed) for function, graphed in zip(functions, all_graphed, strict=True))
    return replayed[0] if single else replayed
