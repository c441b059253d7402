"""Functions that are compiled in one process and called in another, which compiles nothing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.conftest import RunScript

PROGRAM = """
    import pathlib
    import sys

    import torch

    path = pathlib.Path({path!r})

    def function(x, y):
        return torch.softmax(x @ y, -1) * 2

    torch.manual_seed(0)
    x, y = torch.randn(4, 8, device="mtia", requires_grad=True), torch.randn(8, 8, device="mtia")
"""


def in_two_processes(run_script: RunScript, tmp_path: Path, first: str, second: str) -> str:
    """Returns what the second one prints. They share the file `path`, and no cache."""
    program = PROGRAM.format(path=str(tmp_path / "saved"))
    run_script(program + first, TORCHINDUCTOR_CACHE_DIR=str(tmp_path / "first")).output()
    return run_script(program + second, TORCHINDUCTOR_CACHE_DIR=str(tmp_path / "second")).output()


def test_a_function_that_was_compiled_ahead_of_time_is_loaded_from_a_file(
    run_script: RunScript, tmp_path: Path
) -> None:
    first = """
    compiled = torch.compile(function, fullgraph=True).aot_compile(((x, y), {}))
    compiled.save_compiled_function(str(path))
    """
    second = """
    with path.open("rb") as file, torch.compiler.set_stance("fail_on_recompile"):
        loaded = torch.compiler.load_compiled_function(file)
        result = loaded(x, y)
        result.sum().backward()
    gradient, x.grad = x.grad, None
    expected = function(x, y)
    expected.sum().backward()
    torch.testing.assert_close([result, gradient], [expected, x.grad])
    try:
        loaded(x.cpu(), y.cpu())
    except RuntimeError as error:
        print("MTIA" in str(error))
    """
    assert in_two_processes(run_script, tmp_path, first, second) == "True\n"


def test_cached_code_of_a_function_with_graph_breaks_is_not_compiled_again(
    run_script: RunScript, tmp_path: Path
) -> None:
    """`torch._dynamo.config.caching_precompile`: Dynamo's part is cached, too."""
    function = """
    torch._dynamo.config.caching_precompile = True

    def broken(x, y):
        result = function(x, y)
        torch._dynamo.graph_break()
        return result.sin()
    """
    first = """
    torch.compile(broken)(x, y).sum().backward()
    path.write_bytes(torch.compiler.save_cache_artifacts()[0])
    """
    second = """
    torch.compiler.load_cache_artifacts(path.read_bytes())
    compiled = torch.compile(broken)
    with torch.compiler.set_stance("fail_on_recompile"):
        result = compiled(x, y)
        result.sum().backward()
    torch.testing.assert_close(result, broken(x, y))
    print(dict(torch._dynamo.utils.counters["dynamo_cache"]))
    """
    printed = in_two_processes(run_script, tmp_path, function + first, function + second)
    assert printed == "{'dynamo_cache_hit': 1}\n"
