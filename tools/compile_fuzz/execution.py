"""Runs a program: on the CPU as it is, and compiled on the device, in every mode."""

from __future__ import annotations

import dataclasses
import traceback
from collections.abc import Callable
from typing import Any

import torch

from tools.compile_fuzz.comparison import Observation, differences, observe
from tools.compile_fuzz.program import CALLS, LARGER, Program
from torch_mtia.inductor.graphs import forget_recordings

Options = dict[str, Any]
TRACE_LINES = 30  # of a traceback that are reported
# What Inductor raises wherever it writes Triton, so not on the CPU: a guard on the sizes of what a view behind a graph
# break is of.
UPSTREAM_ERRORS = ("sources must not be empty for symbol",)

MODES: dict[str, Options] = {
    "default": {},
    "dynamic": {"dynamic": True},
    "reduce-overhead": {"mode": "reduce-overhead"},
    "max-autotune-no-cudagraphs": {"mode": "max-autotune-no-cudagraphs"},
}
# What else a program that differs is run by, to tell whose fault it is.
OPINIONS: dict[str, tuple[bool, Options | None]] = {  # on the device or on the CPU; None: not compiled
    "eager on the device": (True, None),
    "aot_eager on the CPU": (False, {"backend": "aot_eager"}),
    "Inductor on the CPU": (False, {"options": {"cpp.threads": 2}}),  # for one thread it writes other code
}


@dataclasses.dataclass(frozen=True)
class Outcome:
    kind: str  # "same", "different", "error": compiled code raised, "upstream": it fails on the CPU too
    symptom: str = ""  # the same for the same fault, if possible
    detail: str = ""


class Reference:
    """What a program does on the CPU, for each call that it makes there."""

    def __init__(self, program: Program) -> None:
        function = program.function()
        self.observations: dict[int, Observation] = {}
        for call in (*range(CALLS), LARGER):
            try:
                self.observations[call] = observe(function, program.arguments(call, "cpu"), program.training)
            except (RuntimeError, IndexError, ValueError):
                if call != LARGER:
                    raise


def run(program: Program, reference: Reference, device: str, options: Options | None, *, larger: bool) -> list[str]:
    """Calls it with the data of every call. What is wrong at the first that differs. Raises what it raises."""
    torch._dynamo.reset()
    forget_recordings()
    function: Callable[..., Any] = program.function()
    if options is not None:
        function = torch.compile(function, **options)
    for call, expected in reference.observations.items():
        if call == LARGER and not larger:
            continue
        actual = observe(function, program.arguments(call, device), program.training)
        if found := differences(program, actual, expected):
            return [f"call {call}: {text}" for text in found]
    return []


def outcome(program: Program, mode: str, device: str, reference: Reference) -> Outcome:
    """Of one mode, compared with the CPU."""
    try:
        found = run(program, reference, device, MODES[mode], larger=mode == "dynamic")
    except Exception as error:
        message = (str(error).strip().splitlines() or [""])[0]
        trace = traceback.format_exc().splitlines()
        return Outcome("error", f"{type(error).__name__}: {message[:50]}", "\n".join(trace[-TRACE_LINES:]))
    if not found:
        return Outcome("same")
    return Outcome("different", found[0].split(" ")[2], "\n".join(found))


def covers(others: list[str], ours: list[str]) -> bool:
    """Whether it fails elsewhere in all that it fails in here, or raises."""
    return not others[0].startswith("call ") or {text.split(":")[1] for text in ours} <= {
        text.split(":")[1] for text in others
    }


def judged(program: Program, mode: str, device: str, reference: Reference, found: Outcome) -> Outcome:
    """The outcome with what others say of the program."""
    larger = mode == "dynamic"
    kind, notes = found.kind, []
    if kind == "error" and any(text in found.detail for text in UPSTREAM_ERRORS):
        kind = "upstream"
    for name, (on_device, options) in OPINIONS.items():
        if options is not None and larger:
            options = {**options, "dynamic": True}
        try:
            other = run(program, reference, device if on_device else "cpu", options, larger=larger)
        except Exception as error:
            message = str(error).strip().splitlines() or [""]
            other = [f"{type(error).__name__}: {message[0]}"]
        if other and not on_device and (kind == "error" or covers(other, found.detail.splitlines())):
            kind = "upstream"
        notes.append(f"{name}: {other[0] if other else 'same'}")
    return Outcome(kind, found.symptom, "\n".join([found.detail, *notes]))
