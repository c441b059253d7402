"""What the tests of torch.compile share: compiling, and reading the generated code."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch
from torch._inductor.utils import run_and_get_code


def generated(function: Callable[..., Any], *args: object, **options: Any) -> tuple[Any, str]:
    """The compiled function's result, and all the code that was generated for it."""
    torch._dynamo.reset()
    result, code = run_and_get_code(torch.compile(function, **options), *args)
    return result, "\n".join(code)


def kernels(code: str) -> list[str]:
    """The names of the Triton kernels in generated code."""
    return re.findall(r"^def (triton_\w+)\(", code, re.MULTILINE)


def buffers(code: str) -> list[int]:
    """How many pointers each Triton kernel in generated code takes."""
    return [signature.count("': '*") for signature in re.findall(r"'signature': \{([^}]*)\}", code)]
