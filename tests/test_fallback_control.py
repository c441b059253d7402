"""Whoever falls back is counted, and can be named, warned of or forbidden from Python."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
import torch

from torch_mtia import environment, fallback

if TYPE_CHECKING:
    from tests.conftest import RunScript

# Rare enough to stay without kernels.
NAMES = ("aten::segment_reduce", "aten::_dirichlet_grad", "aten::addbmm_")


def rare(x: torch.Tensor) -> torch.Tensor:
    """An operator that falls back, and whose gradient does; other operators that it calls are native."""
    return torch.segment_reduce(x, "sum", lengths=torch.tensor([4]).to(x.device), unsafe=True)


@pytest.fixture(autouse=True)
def _controls() -> Iterator[None]:
    fallback.reset()
    yield
    fallback.warn("never")
    fallback.deny([])
    fallback.force([])
    fallback.reset()


@pytest.fixture
def x() -> torch.Tensor:
    return torch.arange(4.0).to("mtia")  # falls back nowhere


def count(name: str) -> int:
    """Over all overloads."""
    return sum(calls for operator, calls in fallback.stats().items() if operator.partition(".")[0] == name)


def test_falls_back_are_counted_by_operator(x: torch.Tensor) -> None:
    for _ in range(3):
        rare(x)
    torch._dirichlet_grad(x, x, x)
    assert count("aten::segment_reduce") == 3
    assert next(iter(fallback.stats())).startswith("aten::segment_reduce")  # most frequent first
    assert len(fallback.stats()) == 2


def test_native_operators_are_not_counted(x: torch.Tensor) -> None:
    y = torch.relu(x * 2 + x - 1)
    y.view(2, 2).t().contiguous().fill_(1).zero_()
    y.cpu(), y.tolist(), y[1].item()
    assert fallback.stats() == {}


def test_reset_sets_the_counts_to_zero(x: torch.Tensor) -> None:
    rare(x)
    fallback.reset()
    assert fallback.stats() == {}


def test_the_backward_pass_is_counted_too(x: torch.Tensor) -> None:
    rare(x.requires_grad_()).sum().backward()
    assert count("aten::segment_reduce") == 1
    assert count("aten::_segment_reduce_backward") == 1


def test_threads_are_counted_exactly(x: torch.Tensor) -> None:
    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(rare, x) for _ in range(400)]:
            done.result()
    assert count("aten::segment_reduce") == 400


def messages(call: object, times: int, x: torch.Tensor) -> list[str]:
    assert callable(call)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(times):
            call(x)
    return [str(warning.message) for warning in caught if "segment_reduce" in str(warning.message)]


@pytest.mark.parametrize(("mode", "expected"), [("never", 0), ("once", 1), ("always", 3)])
def test_warnings(x: torch.Tensor, mode: fallback.WarnMode, expected: int) -> None:
    fallback.warn(mode)
    assert len(messages(rare, 3, x)) == expected


def test_once_means_once_for_each_operator(x: torch.Tensor) -> None:
    fallback.warn("once")
    assert len(messages(rare, 2, x)) == 1
    with pytest.warns(UserWarning, match="_dirichlet_grad"):
        torch._dirichlet_grad(x, x, x)


def test_a_warning_can_be_made_an_error(x: torch.Tensor) -> None:
    fallback.warn("always")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="segment_reduce"):
            rare(x)
    assert torch.equal(torch.relu(x), x)


def test_an_unknown_mode_raises_and_lists_the_valid_ones() -> None:
    with pytest.raises(ValueError, match="'never', 'once', 'always'"):
        fallback.warn("sometimes")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["aten::segment_reduce", "segment_reduce"])
def test_a_denied_operator_raises_and_names_itself(x: torch.Tensor, name: str) -> None:
    fallback.deny([name])
    with pytest.raises(NotImplementedError, match="segment_reduce"):
        rare(x)
    torch._dirichlet_grad(x, x, x)  # others go on
    fallback.deny([])
    assert rare(x).device == x.device


def test_denying_what_is_native_changes_nothing(x: torch.Tensor) -> None:
    fallback.deny(["aten::mul"])
    assert torch.equal(x * 1, x)


def test_denying_an_unknown_operator_raises() -> None:
    with pytest.raises(ValueError, match="no_such_operator"):
        fallback.deny(["aten::no_such_operator"])
    with pytest.raises(TypeError, match="list"):
        fallback.deny("aten::segment_reduce")


def test_forbid_raises_and_names_the_operator(x: torch.Tensor) -> None:
    with fallback.forbid():
        torch.relu(x * 2)
        with pytest.raises(NotImplementedError, match="segment_reduce"):
            rare(x)
    assert rare(x).device == x.device


def test_forbid_nests_and_ends_with_its_block(x: torch.Tensor) -> None:
    def fails_inside() -> None:
        with fallback.forbid(), fallback.forbid():
            raise KeyError

    with pytest.raises(KeyError):
        fails_inside()
    rare(x)
    with fallback.forbid():
        with fallback.forbid():
            pass
        with pytest.raises(NotImplementedError, match="segment_reduce"):
            rare(x)


def test_forbid_covers_the_backward_pass(x: torch.Tensor) -> None:
    y = rare(x.requires_grad_()).sum()
    with fallback.forbid(), pytest.raises(NotImplementedError, match="aten::"):
        y.backward()


def test_a_refused_operator_leaves_its_operands_alone(x: torch.Tensor) -> None:
    before = x.tolist()
    with fallback.forbid(), pytest.raises(NotImplementedError, match="addbmm_"):
        x.view(2, 2).addbmm_(x.view(1, 2, 2), x.view(1, 2, 2))
    assert x.tolist() == before


@pytest.mark.parametrize("name", NAMES)
def test_the_operators_of_this_module_fall_back(name: str) -> None:
    native = torch._C._dispatch_get_registrations_for_dispatch_key("MTIA")
    assert not [full for full in native if full.partition(".")[0] == name]


def test_a_forced_operator_falls_back_until_its_kernel_is_given_back(x: torch.Tensor) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fallback.force(["aten::mul", "mul_.Tensor", "exp.out"])
    assert torch.equal((x * 2).cpu(), x.cpu() * 2)
    assert torch.equal(x.mul_(3).cpu(), torch.arange(4.0) * 3)
    torch.exp(x, out=x)
    assert torch.equal(x.cpu(), (torch.arange(4.0) * 3).exp())
    assert fallback.stats() == {"aten::exp.out": 1, "aten::mul.Tensor": 1, "aten::mul_.Tensor": 1}
    fallback.reset()
    fallback.force(["aten::add.Tensor"])
    x * 2 + x
    assert fallback.stats() == {"aten::add.Tensor": 1}
    fallback.force([])
    x * 2 + x
    assert fallback.stats() == {"aten::add.Tensor": 1}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_forced_sums_of_16_bit_numbers_are_rounded_once(dtype: torch.dtype) -> None:
    fallback.force(["embedding_dense_backward", "_index_put_impl_", "put_"])
    index = torch.zeros(3000, dtype=torch.long, device="mtia")
    ones = torch.ones(3000, 2, dtype=dtype, device="mtia")
    weight = torch.zeros(5, 2, dtype=dtype, device="mtia", requires_grad=True)
    torch.nn.functional.embedding(index, weight).sum().backward()
    assert weight.grad is not None
    put = torch.zeros_like(ones[:5]).index_put_((index,), ones, accumulate=True)
    flat = torch.zeros_like(ones[:5]).put_(index, ones[:, 0].contiguous(), accumulate=True)
    rounded = torch.tensor(3000.0).to(dtype).item()
    assert [weight.grad[0, 0].item(), put[0, 0].item(), flat[0, 0].item()] == [rounded] * 3
    assert count("aten::embedding_dense_backward") == count("aten::_index_put_impl_") == count("aten::put_") == 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_forced_operator_refuses_memory_that_overlaps(dtype: torch.dtype) -> None:
    fallback.force(["_index_put_impl_", "put_"])
    x = torch.ones(4, dtype=dtype, device="mtia")
    index = torch.tensor([0, 1], device="mtia")
    calls: tuple[Callable[[], object], ...] = (
        lambda: x.index_put_((index,), x[:2], accumulate=True),
        lambda: x.put_(index, x[1:3], accumulate=True),
        lambda: x[:1].expand(4).put_(index, torch.ones_like(x[:2]), accumulate=True),
    )
    for call in calls:
        with pytest.raises(RuntimeError, match="unsupported operation"):
            call()
    assert x.tolist() == [1] * 4


def test_what_a_forced_operator_gives_has_its_gradient(x: torch.Tensor) -> None:
    fallback.force(["sigmoid", "sigmoid_backward"])
    torch.sigmoid(x.requires_grad_()).sum().backward()
    expected = torch.arange(4.0, requires_grad=True)
    torch.sigmoid(expected).sum().backward()
    assert x.grad is not None
    assert expected.grad is not None
    assert torch.equal(x.grad.cpu(), expected.grad)
    assert (count("aten::sigmoid"), count("aten::sigmoid_backward")) == (1, 1)


def test_forced_operators_may_be_denied(x: torch.Tensor) -> None:
    fallback.force(["mul"])
    fallback.deny(["mul"])
    with pytest.raises(NotImplementedError, match=r"aten::mul\.Tensor"):
        x * 2


def test_a_step_of_training_with_every_operator_forced() -> None:
    """Whatever can be forced, all at once."""

    def step(device: str) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Conv2d(2, 4, 3, bias=False), torch.nn.BatchNorm2d(4), torch.nn.Flatten())
        model.append(torch.nn.Linear(64, 3)).append(torch.nn.LayerNorm(3))
        inputs, labels = torch.randn(5, 2, 6, 6).to(device), torch.arange(5).remainder(3).to(device)
        model.to(device)
        optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
        torch.nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
        return [parameter.detach().cpu() for parameter in model.parameters()]

    fallback.force("all")
    actual = step("mtia")
    stats = fallback.stats()
    fallback.force([])
    for ours, theirs in zip(actual, step("cpu"), strict=True):
        torch.testing.assert_close(ours, theirs)
    assert {"aten::addmm", "aten::native_layer_norm_backward", "aten::_foreach_lerp_.Scalar"} <= set(stats)


def test_all_denies_every_fallback_and_no_kernel(x: torch.Tensor) -> None:
    fallback.deny("all")
    with pytest.raises(NotImplementedError, match="segment_reduce has no kernel for mtia"):
        rare(x)
    with pytest.raises(NotImplementedError, match="_dirichlet_grad"):
        torch._dirichlet_grad(x, x, x)
    assert torch.relu(x).tolist() == x.tolist()
    fallback.deny(["aten::all"])
    assert rare(x).device == x.device


def test_all_forces_what_can_be_forced(x: torch.Tensor) -> None:
    fallback.force("all")
    assert (x @ x + torch.nonzero(x)).tolist() == [[15], [16], [17]]
    assert {"aten::dot", "aten::nonzero", "aten::add.Tensor"} <= set(fallback.stats())


def test_messages_say_whether_an_operator_is_forced(x: torch.Tensor) -> None:
    fallback.warn("always")
    fallback.force(["mul"])
    with pytest.warns(UserWarning, match=r"aten::mul\.Tensor is forced off its kernel for mtia and falls back"):
        x * 2
    with pytest.warns(UserWarning, match="aten::segment_reduce has no kernel for mtia and falls back"):
        rare(x)


PROGRAM = """
import sys
import torch
import torch_mtia

x = torch.ones(2, 2).to("mtia")
print((x @ x).sum().item(), torch_mtia.fallback.stats())
"""


def test_the_environment_controls_the_fallback(run_script: RunScript) -> None:
    finished = run_script(PROGRAM, TORCH_MTIA_FALLBACK="force:aten::mm,force:sum.dim_IntList,force:exp,warn:once")
    assert "8.0" in finished.output()
    assert "'aten::mm': 1" in finished.output()
    assert finished.stderr.count("is forced off its kernel for mtia and falls back to the CPU") == 2

    finished = run_script(PROGRAM, TORCH_MTIA_FALLBACK="force:mm,deny:aten::mm")
    assert finished.returncode == 1
    assert "NotImplementedError: aten::mm is forced off its kernel for mtia" in finished.stderr
    assert "TORCH_MTIA_FALLBACK" in finished.stderr


def test_the_environment_takes_all(run_script: RunScript) -> None:
    denying = PROGRAM + "torch.segment_reduce(x, 'sum', lengths=torch.tensor([2]).to('mtia'))"
    finished = run_script(denying, TORCH_MTIA_FALLBACK="deny:all")
    assert finished.stdout == "8.0 {}\n"
    assert "NotImplementedError: aten::segment_reduce has no kernel" in finished.stderr
    assert "'aten::mm': 1" in run_script(PROGRAM, TORCH_MTIA_FALLBACK="force:all").output()


def test_a_program_replaces_what_the_environment_says(run_script: RunScript) -> None:
    script = PROGRAM + "torch_mtia.fallback.force([])\n" + PROGRAM
    first, second = run_script(script, TORCH_MTIA_FALLBACK="force:mm").output().splitlines()
    assert first == second == "8.0 {'aten::mm': 1}"


def test_started_processes_obey_the_environment(run_script: RunScript) -> None:
    script = """
        import torch
        import torch.multiprocessing as multiprocessing

        def work(rank):
            import torch_mtia
            x = torch.ones(2, 2).to("mtia")
            x @ x
            print(torch_mtia.fallback.stats(), flush=True)

        if __name__ == "__main__":
            multiprocessing.spawn(work, nprocs=2)
    """
    finished = run_script(script, timeout=120, TORCH_MTIA_FALLBACK="force:mm")
    assert finished.output() == "{'aten::mm': 1}\n" * 2


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("mm", "'mm' is none of these"),
        ("force:", "'force:' is none of these"),
        ("force:aten::mm,aten::add", "'aten::add' is none of these"),
        ("force:mm,", "'' is none of these"),
        ("warn:sometimes", "there is no mode 'sometimes'"),
        ("warn:once,warn:always", "warn has two modes"),
    ],
)
def test_a_list_that_is_not_one_is_refused(value: str, why: str) -> None:
    with pytest.raises(ValueError, match=f"TORCH_MTIA_FALLBACK='{value}' is not valid .{why}.*`force:OPERATOR`"):
        environment.read({"TORCH_MTIA_FALLBACK": value})


def test_another_name_of_the_device_obeys_the_environment(run_script: RunScript) -> None:
    script = """
        import torch, torch_mtia
        torch_mtia.privateuse1.enable("acme")
        x = torch.ones(2, 2).to("acme")
        x @ x
        print(torch_mtia.fallback.stats())
    """
    assert run_script(script, TORCH_MTIA_FALLBACK="force:mm").output() == "{'aten::mm': 1}\n"


@pytest.mark.in_tree(
    "under another name the accelerator stays available, and programs that compile for the CPU raise, too"
)
@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("deny:no_such_operator", "'no_such_operator' is not an operator"),
        ("force:aten::mm,force:segment_reduce", "'aten::segment_reduce' has no kernel for mtia"),
        ("force:empty", "'aten::empty' cannot be forced"),
    ],
)
def test_an_operator_that_is_none_raises_at_the_first_use(run_script: RunScript, value: str, why: str) -> None:
    cpu_only = """
        import torch
        x = torch.arange(3.0, requires_grad=True)
        (x * x).sum().backward()
        print(x.grad.tolist(), torch.accelerator.is_available())
        print(torch.compile(lambda x: x.sin().sum())(torch.zeros(3)).item())
    """
    finished = run_script(cpu_only, timeout=120, TORCH_MTIA_FALLBACK=value)
    assert finished.output() == "[0.0, 2.0, 4.0] False\n0.0\n"
    assert f"TORCH_MTIA_FALLBACK: {why}" in finished.stderr
    for use in ("torch.ones(1, device='mtia')", "torch.mtia.set_device(0)"):
        finished = run_script(f"import torch\n{use}", TORCH_MTIA_FALLBACK=value)
        assert finished.returncode == 1
        assert finished.stderr.splitlines()[-1].startswith(f"RuntimeError: TORCH_MTIA_FALLBACK: {why}")


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("no_such_operator", "is not an operator"),
        ("segment_reduce", "has no kernel for mtia"),
        ("aten::empty.memory_format", "the fallback itself needs it"),
        ("_copy_from", "the fallback itself needs it"),
        ("_thnn_fused_gru_cell", "has no kernel for the CPU"),
        ("convolution_overrideable", "has no kernel for the CPU"),
    ],
)
def test_what_cannot_be_forced_raises_and_leaves_the_list(x: torch.Tensor, name: str, why: str) -> None:
    fallback.force(["mul"])
    with pytest.raises(ValueError, match=why):
        fallback.force(["add", name])
    x * 2 + x
    assert fallback.stats() == {"aten::mul.Tensor": 1}
    with pytest.raises(TypeError, match="list"):
        fallback.force("mul")
