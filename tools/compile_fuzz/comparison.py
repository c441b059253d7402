"""What a program does, and what differs between two executions of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch

from tools.compile_fuzz.program import Arguments, Program


@dataclasses.dataclass
class Observation:
    """Of one call, on the CPU."""

    outputs: list[torch.Tensor]
    strides: list[tuple[int, ...]]  # of outputs
    bases: list[torch.Tensor]  # what the inputs are slices of, after the call
    inputs: list[torch.Tensor]  # after the call
    gradients: list[torch.Tensor | None]
    sharing: list[tuple[int, ...]]  # for each output, which inputs and outputs before it lie in its storage
    written: list[torch.Tensor]  # outputs and inputs after every output has been written, in turn


def observe(function: Callable[..., Any], given: Arguments, training: bool) -> Observation:
    """Calls the function and looks at all that it has an effect on."""
    with torch.set_grad_enabled(training):
        outputs = list(function(*given.tensors))
    gradients: list[torch.Tensor | None] = []
    if training:
        gradients = _gradients(outputs, given.leaves)
    with torch.no_grad():
        seen = [*given.tensors, *outputs]
        first = len(given.tensors)
        sharing = [
            tuple(other for other in range(first + place) if _share(seen[other], output))
            for place, output in enumerate(outputs)
        ]
        strides = [output.stride() for output in outputs]
        copies = _copies(outputs), strides, _copies(given.bases), _copies(given.tensors)
        result = Observation(*copies, gradients, sharing, [])
        for output in outputs:
            output = output.detach()
            if not any(size > 1 and step == 0 for size, step in zip(output.shape, output.stride(), strict=True)):
                output.logical_not_() if output.dtype == torch.bool else output.fill_(1)
        result.written = _copies(seen)
    return result


def _gradients(outputs: list[torch.Tensor], leaves: list[torch.Tensor]) -> list[torch.Tensor | None]:
    """Of a sum of all elements with weights, whole numbers that differ."""
    total: torch.Tensor | None = None
    for place, output in enumerate(outputs):
        if not output.requires_grad:
            continue
        weights = torch.arange(output.numel(), device=output.device).add(place).remainder(5).sub(2).view(output.shape)
        part = (output.double() * weights).sum()
        total = part if total is None else total + part
    if total is None:
        return [None for _ in leaves]
    found = torch.autograd.grad(total, leaves, allow_unused=True)
    return [None if gradient is None else gradient.detach().cpu() for gradient in found]


def _share(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.numel() > 0 and b.numel() > 0 and a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


def _copies(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """On the CPU."""
    copies = []
    for tensor in tensors:
        copy = tensor.detach().cpu()
        copies.append(copy.clone() if copy.data_ptr() == tensor.data_ptr() else copy)
    return copies


def differences(program: Program, actual: Observation, expected: Observation) -> list[str]:
    """What is wrong, in words; empty: nothing."""
    found = []
    for place, (name, ours, theirs) in enumerate(zip(program.results, actual.outputs, expected.outputs, strict=True)):
        texts = _differ(ours, theirs, program.errors[name])
        if not texts:
            texts = _strides_differ(theirs, actual.strides[place], expected.strides[place])
        found += [f"output {place} ({name}): {text}" for text in texts]
    for each, ours, theirs in zip(program.inputs, actual.inputs, expected.inputs, strict=True):
        error = program.errors[each.name]
        found += [f"input {each.name}: {text}" for text in _differ(ours, theirs, error)]
    owners = [each for each in program.inputs if not each.within]
    for each, ours, theirs in zip(owners, actual.bases, expected.bases, strict=True):
        error = program.errors[each.name]
        found += [f"around input {each.name}: {text}" for text in _differ(ours, theirs, error)]
    leaves = [each for each in program.inputs if each.gradient]
    for each, mine, reference in zip(leaves, actual.gradients, expected.gradients, strict=False):
        if mine is not None and reference is not None:
            differ = _differ(mine, reference, _gradient_error(reference))
        else:  # compiled code has zeros for what a mutation cuts off, where eager code has nothing
            only = reference if mine is None else mine
            differ = [f"{mine} where the CPU has {reference}"] if only is not None and only.any() else []
        found += [f"gradient of {each.name}: {text}" for text in differ]
    if not _is_sharing_allowed(program, actual.sharing, expected.sharing):
        found.append(
            f"storages of outputs are shared with {actual.sharing} where the CPU's are with {expected.sharing}"
        )
    elif not found and actual.sharing == expected.sharing:
        names = [*(each.name for each in program.inputs), *program.results]
        for name, ours, theirs in zip(names, actual.written, expected.written, strict=True):
            differ = _differ(ours, theirs, program.errors[name])
            found += [f"{name}, after outputs were written: {text}" for text in differ]
    return found


def _is_sharing_allowed(program: Program, actual: list[tuple[int, ...]], expected: list[tuple[int, ...]]) -> bool:
    """Compiled code may give outputs storages of their own that share one in eager code, if they neither alias an input
    nor have gradients: AOTAutograd keeps track of no others. They never share more."""
    inputs = len(program.inputs)
    for ours, theirs in zip(actual, expected, strict=True):
        missing = set(theirs) - set(ours)
        if set(ours) - set(theirs) or any(other < inputs or program.training for other in missing):
            return False
    return True


def _gradient_error(reference: torch.Tensor) -> float:
    """Gradients are sums of products whose bounds nobody keeps: a share of the largest."""
    eps: float = torch.finfo(reference.dtype).eps
    finite = reference.double()[reference.isfinite()]
    largest = float(finite.abs().max()) if finite.numel() else 0.0
    return max(500 * eps, 1e-4) * (largest + 1) if eps < 1e-4 else 60 * eps * (largest + 1)


def _differ(actual: torch.Tensor, expected: torch.Tensor, error: float) -> list[str]:
    if actual.dtype != expected.dtype or actual.shape != expected.shape:
        return [
            f"{actual.dtype} of {tuple(actual.shape)} where the CPU has {expected.dtype} of {tuple(expected.shape)}"
        ]
    wrong = actual != expected
    if expected.dtype.is_floating_point:
        wrong &= ~(actual.isnan() & expected.isnan())
        if error:
            wrong &= ~((actual.double() - expected.double()).abs() <= 4 * error)
    if not wrong.any():
        return []
    place = tuple(wrong.nonzero()[0].tolist())
    return [
        f"{int(wrong.sum())} of {wrong.numel()} elements of {actual.dtype}, the first {list(place)} is "
        f"{actual[place].item()!r} where the CPU has {expected[place].item()!r} (error allowed: {4 * error:.3g})"
    ]


def _strides_differ(tensor: torch.Tensor, actual: tuple[int, ...], expected: tuple[int, ...]) -> list[str]:
    """Those of tensors with gaps are not promised: a view of what the program computed is computed as it is."""
    span = 1 + sum((size - 1) * step for size, step in zip(tensor.shape, expected, strict=True))
    if span != tensor.numel():
        return []
    if all(size == 1 or mine == other for size, mine, other in zip(tensor.shape, actual, expected, strict=True)):
        return []
    return [f"strides {actual} where the CPU has {expected}"]
