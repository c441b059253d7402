"""Programs of which none uses the device, and what they do: as JSON, in the last line that the process prints, their
results, which of upstream's functions they call, and digests of the code of the modules that are named.

python -m tests.other_devices MODULE ...
"""

from __future__ import annotations

import copy
import hashlib
import importlib
import io
import json
import pickle
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

PROGRAMS: list[Callable[[], Any]] = []


def program(function: Callable[[], Any]) -> Callable[[], Any]:
    PROGRAMS.append(function)
    return function


def described(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{value.dtype} {value.device} {tuple(value.shape)} {value.stride()}" + (
            "" if isinstance(value, torch._subclasses.FakeTensor) else f" {value.detach().tolist()}"
        )
    if isinstance(value, list | tuple):
        return str([described(each) for each in value])
    return re.sub(r"0x[0-9a-f]+", "", str(value))


def raised(function: Callable[[], Any]) -> Any:
    try:
        return function()
    except Exception as error:
        return f"{type(error).__name__}: {error}"


# On the CPU -----------------------------------------------------------------------------------------------------------


@program
def norms() -> Any:
    x = torch.arange(6.0).view(2, 3)
    return [x.norm(), torch.norm(x, p=1), x.norm(dim=0), torch.jit.script(lambda_norm)(x)]


def lambda_norm(x: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = torch.norm(x, p=2.0)
    return result


@program
def steps() -> Any:
    weight = torch.nn.Parameter(torch.ones(3))
    for optimizer in (torch.optim.Adam([weight]), torch.optim.RAdam([weight]), torch.optim.RMSprop([weight])):
        weight.grad = torch.full((3,), 2.0)
        optimizer.step()
    return [weight, raised(lambda: capturable_step(weight)).partition(":")[0]]  # the message has the list of devices


def capturable_step(weight: torch.nn.Parameter) -> None:
    torch.optim.Adam([weight], capturable=True).step()


@program
def copies() -> Any:
    x = torch.arange(4.0)
    text = io.BytesIO()
    pickle.dump([x, x[2:]], text)
    text.seek(0)
    return [copy.deepcopy([x, x[2:]]), pickle.load(text), x.new(3).shape, repr(x)]


@program
def batch_norm() -> Any:
    return torch.nn.SyncBatchNorm(3)(torch.arange(6.0).view(2, 3))


@program
def attention() -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    x = torch.arange(32.0).view(1, 1, 2, 16)
    with torch.autocast("cpu"):
        return flex_attention(x, x, x)


@program
def compiled() -> Any:
    """And the code that Inductor generates for the CPU."""
    from torch._inductor.utils import run_and_get_code

    def function(x: torch.Tensor, i: torch.Tensor) -> Any:
        return (x.softmax(1) + x.norm()).argmax(), i // -3, torch.addmm(x[0], x, x.t() @ x, beta=0), x.exp().sum(0)

    result, (code,) = run_and_get_code(
        torch.compile(function), torch.arange(9.0).view(3, 3), torch.arange(5, dtype=torch.int8)
    )
    return [result, hashlib.sha256(re.sub(r"/\S+|c\w{50,}", "", code).encode()).hexdigest()]


# On CUDA, with fake tensors -------------------------------------------------------------------------------------------


def on_cuda(*sizes: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(sizes, dtype=dtype, device="cuda")


@program
def operators_on_cuda() -> Any:
    with FakeTensorMode():
        x = on_cuda(2, 3)
        return [x.norm(), torch.norm(x, p=1), x.softmax(1), torch.nn.functional.layer_norm(x, (3,))]


@program
def convolutions_on_cuda() -> Any:
    with FakeTensorMode():
        x, weight = on_cuda(2, 3, 4, 4).to(memory_format=torch.channels_last), on_cuda(2, 3, 3, 3)
        return torch.conv2d(x, weight, padding=1)


@program
def traced_on_cuda() -> Any:
    from torch.fx.experimental.proxy_tensor import make_fx

    with FakeTensorMode():
        table: Any = torch._decomp.core_aten_decompositions()
        x = on_cuda(2, 3, 3)
        graph = make_fx(lambda a, b: torch.baddbmm(a, b, b, beta=2) // 3, decomposition_table=table)(x, x)
    return graph.code


@program
def questions_about_cuda() -> Any:
    from torch._higher_order_ops.out_dtype import is_int_mm
    from torch._inductor.utils import needs_fallback_due_to_atomic_add_limitations
    from torch.nn.attention import flex_attention

    with FakeTensorMode():
        x = on_cuda(2, 2, dtype=torch.int8)
        return [
            raised(lambda: flex_attention._validate_device(x, x, x)),
            is_int_mm(torch.ops.aten.mm.default, torch.int32, (x, x)),
            needs_fallback_due_to_atomic_add_limitations(torch.float32),
            raised(lambda: torch.optim.optimizer._get_capturable_supported_devices()[:3]),
        ]


# What they are --------------------------------------------------------------------------------------------------------


def calls_of_upstream(function: Callable[[], Any]) -> tuple[Any, Counter[str]]:
    """Returns the result and how often each function of torch, in Python, was called."""
    seen: Counter[str] = Counter()

    def count(frame: Any, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and "site-packages/torch/" in code.co_filename:
            place = code.co_filename.partition("site-packages/torch/")[2]
            if not place.startswith(NOT_COUNTED):
                seen[f"{place}:{code.co_firstlineno}:{code.co_name}"] += 1

    sys.setprofile(count)
    try:
        result = function()
    finally:
        sys.setprofile(None)
    return result, seen


NOT_COUNTED = (
    *("_guards.py", "_inductor/", "_dynamo/", "fx/", "_functorch/", "utils/", "_logging/"),
    *("_subclasses/", "cuda/", "mtia/", "accelerator/", "_jit_internal.py"),
)
"""What asks for the accelerator or for TorchScript, hashes for a cache, or compiles, of which the generated code tells
more."""


def codes(module: ModuleType, originals: dict[Any, Any]) -> Iterator[tuple[str, str]]:
    """Yields the names of the functions of a module, and digests of their code: of those that are replaced, the
    original's."""
    for name, value in [*vars(module).items()]:
        for path, each in [(name, value), *((f"{name}.{key}", entry) for key, entry in members(value, module))]:
            function = originals.get((module.__name__, path), originals.get(id(each), each))
            function = getattr(function, "__func__", function)
            function = getattr(function, "__wrapped__", function)
            if isinstance(function, FunctionType):
                code = originals.get((module.__name__, f"{path}.__code__"), function.__code__)
                code = originals.get((module.__name__, f"{path}.__wrapped__.__code__"), code)
                yield path, digest(code)


def members(value: Any, module: ModuleType) -> list[tuple[str, Any]]:
    is_own = isinstance(value, type) and value.__module__ == module.__name__
    return [*vars(value).items()] if is_own else []


def digest(code: CodeType) -> str:
    constants = [digest(each) if isinstance(each, CodeType) else repr(each) for each in code.co_consts]
    constants = [re.sub(r"0x[0-9a-f]+", "", each) for each in constants]
    if "frozenset" in str(constants):
        constants = [str(sorted(each)) for each in constants]
    whole = (code.co_code, code.co_names, code.co_varnames, constants)
    return hashlib.sha256(repr(whole).encode()).hexdigest()[:16]


def imported(name: str) -> ModuleType | None:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def main() -> None:
    found: dict[str, Any] = {"results": {}, "calls": {}, "codes": {}}
    for function in PROGRAMS:
        torch.manual_seed(0)
        function()  # what is done once in a process
        torch._dynamo.reset()
        result, seen = calls_of_upstream(function)
        found["results"][function.__name__] = described(result)
        found["calls"][function.__name__] = seen
    modules = [module for name in sys.argv[1:] if (module := imported(name)) is not None]
    package = sys.modules.get("torch_mtia")
    originals: dict[Any, Any] = {}
    if package:
        gates = package.upstream_gates
        originals = {**gates.originals, **{key: original for key, (_, original) in gates._replaced.items()}}
    for module in modules:
        found["codes"].update({f"{module.__name__}:{path}": code for path, code in codes(module, originals)})
    print(json.dumps(found))


if __name__ == "__main__":
    main()
