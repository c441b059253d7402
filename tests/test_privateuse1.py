"""PrivateUse1: the device under a name of the user's choice. Every other test module runs there by `make
test-privateuse1`; here is what concerns the name itself."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from triton.backends.compiler import GPUTarget

from torch_mtia.triton.architecture import architecture
from torch_mtia.triton.compiler import MTIABackend

if TYPE_CHECKING:
    from tests.conftest import RunScript


pytestmark = pytest.mark.in_tree("each process registers a device type of its own")


@pytest.fixture
def run_plainly(run_script: RunScript) -> RunScript:
    """Runs a script that starts with the device type mtia."""

    def run(text: str, /, **environment: str) -> object:
        return run_script(text, timeout=120, **{"TORCH_MTIA_PRIVATEUSE1": "", **environment})

    return run  # type: ignore[return-value]


def test_name_from_the_environment(run_plainly: RunScript) -> None:
    finished = run_plainly(
        """
        import torch
        x = torch.arange(3.0, device="acme", requires_grad=True)
        (x * x).sum().backward()
        print(x.grad, x.is_acme, torch.accelerator.current_accelerator(), torch.mtia.is_available())
        """,
        TORCH_MTIA_PRIVATEUSE1="acme",
    )
    assert finished.output() == "tensor([0., 2., 4.], device='acme:0') True acme False\n"


def test_enable_after_import(run_plainly: RunScript) -> None:
    finished = run_plainly(
        """
        import os, torch
        from torch_mtia import privateuse1
        privateuse1.enable("acme")
        privateuse1.enable("acme")  # harmless
        print(torch.ones(2).acme() + 1, torch.nn.Linear(1, 1).to("acme").weight.device, torch.acme.device_count())
        print(torch.accelerator.current_accelerator(), os.environ["TORCH_MTIA_PRIVATEUSE1"])
        """
    )
    assert finished.output() == "tensor([2., 2.], device='acme:0') acme:0 1\nacme acme\n"


def test_children_have_the_same_name(run_plainly: RunScript) -> None:
    finished = run_plainly(
        """
        import torch
        from torch_mtia import privateuse1

        def work(queue, x):
            queue.put((str(x.device), (x + 1).sum().item()))

        if __name__ == "__main__":
            privateuse1.enable("acme")
            context = torch.multiprocessing.get_context("spawn")
            queue = context.SimpleQueue()
            child = context.Process(target=work, args=(queue, torch.ones(3, device="acme")))
            child.start()
            print(queue.get())
            child.join()
        """
    )
    assert finished.output() == "('acme:0', 6.0)\n"


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Acme", "lowercase letters"),
        ("a-b", "lowercase letters"),
        ("", "lowercase letters"),
        ("class", "keyword"),
        ("cuda", "PyTorch uses"),
        ("cpu", "PyTorch uses"),
        ("privateuseone", "device type of PyTorch's"),
        ("nn", "PyTorch uses"),
        ("data", "PyTorch uses"),
    ],
)
def test_bad_name(run_plainly: RunScript, name: str, message: str) -> None:
    finished = run_plainly(
        f"""
        import torch
        from torch_mtia import privateuse1
        try:
            privateuse1.enable({name!r})
        except ValueError as error:
            print(error)
        print(torch.ones(2, device="mtia").sum().item(), torch._C._get_privateuse1_backend_name())
        """
    )
    *error, rest = finished.output().splitlines()
    assert message in error[0]
    assert rest == "2.0 privateuseone"


def test_driver_that_is_not_there(run_plainly: RunScript) -> None:
    finished = run_plainly(
        """
        import os, torch
        from torch_mtia import privateuse1
        try:
            privateuse1.enable("acme", driver="/nowhere/driver.so")
        except ValueError as error:
            print(error)
        print(torch.ones(2, device="mtia").sum().item(), "TORCH_MTIA_RUNTIME" in os.environ)
        """
    )
    error, rest = finished.output().splitlines()
    assert "'/nowhere/driver.so' is not valid (no such file)" in error
    assert rest == "2.0 False"


def test_bad_name_from_the_environment(run_plainly: RunScript) -> None:
    finished = run_plainly("import torch", TORCH_MTIA_PRIVATEUSE1="a-b")
    assert finished.returncode == 0  # the program may need no device
    assert "TORCH_MTIA_PRIVATEUSE1='a-b' is not valid" in finished.stderr


@pytest.mark.parametrize("name", ["cuda", "nn"])
def test_a_name_that_pytorch_uses_leaves_no_device(run_plainly: RunScript, name: str) -> None:
    script = """
        import torch
        print(torch.accelerator.current_accelerator(check_available=True), torch.mtia.is_available())
    """
    finished = run_plainly(script, TORCH_MTIA_PRIVATEUSE1=name)
    assert finished.returncode == 0
    assert finished.stdout == "None False\n"
    assert f"there is a torch.{name}" in finished.stderr


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("before", "message"),
    [
        ('torch.ones(1, device="mtia")', "in use as 'mtia' already"),
        ('privateuse1.enable("other")', "the devices are 'other' in this process already"),
        ('torch.utils.rename_privateuse1_backend("other")', "has named PrivateUse1 'other'"),
        (
            "from torch.utils.backend_registration import _setup_privateuseone_for_python_backend as setup\n"
            'setup("privateuseone")',
            "another backend",
        ),
    ],
)
def test_too_late(run_plainly: RunScript, before: str, message: str) -> None:
    script = (
        "import torch\nfrom torch_mtia import privateuse1\n"
        f"{before}\n"
        "name = torch._C._get_privateuse1_backend_name()\n"
        'try:\n    privateuse1.enable("acme")\nexcept RuntimeError as error:\n    print(error)\n'
        "print(torch._C._get_privateuse1_backend_name() == name, hasattr(torch, 'acme'))\n"
    )
    error, rest = run_plainly(script).output().splitlines()
    assert message in error
    assert rest == "True False"


def test_devices_stay_usable_after_a_failure(run_plainly: RunScript) -> None:
    """Whatever was registered before the renaming failed is taken back."""
    finished = run_plainly(
        """
        import torch
        from torch_mtia import privateuse1

        def refuse(name):
            raise RuntimeError("refused")

        torch.utils.backend_registration.rename_privateuse1_backend = refuse
        try:
            privateuse1.enable("acme")
        except RuntimeError as error:
            print(error)
        print(torch.ones(2, device="mtia").sum().item(), torch.accelerator.current_accelerator())
        print(torch._C._dispatch_has_kernel_for_dispatch_key("aten::add.out", "PrivateUse1"))
        import torch.distributed as dist
        dist.init_process_group("tmccl", store=dist.HashStore(), rank=0, world_size=1)
        x = torch.ones(2, device="mtia")
        dist.all_reduce(x)
        print(x.tolist(), torch._C._dispatch_has_kernel_for_dispatch_key("c10d::allreduce_", "MTIA"))
        """
    )
    assert finished.output().splitlines() == ["refused", "2.0 mtia", "False", "[1.0, 1.0] True"]


def test_other_type_is_gone(run_plainly: RunScript) -> None:
    finished = run_plainly(
        """
        import torch
        from torch_mtia import privateuse1
        privateuse1.enable("acme")
        try:
            torch.ones(1, device="mtia")
        except (RuntimeError, NotImplementedError) as error:
            print(type(error).__name__)
        """
    )
    assert finished.output() == "NotImplementedError\n"


def test_sparse_kernels_are_those_of_mtia(run_plainly: RunScript) -> None:
    """They are registered with the first sparse tensor."""
    printed = [
        run_plainly(
            f"""
            import torch
            from torch_mtia import privateuse1
            {enabling}
            torch.sparse_coo_tensor(size=(2, 2), device="{device}")
            names = torch._C._dispatch_get_all_op_names()
            print(*(name for name in names if "\\n{key}: registered" in torch._C._dispatch_dump(name)))
            """
        ).output()
        for device, key, enabling in (
            ("mtia", "SparseMTIA", ""),
            ("acme", "SparsePrivateUse1", 'privateuse1.enable("acme")'),
        )
    ]
    of_mtia, of_acme = (set(text.split()) for text in printed)
    assert len(of_mtia) > 100
    assert of_mtia ^ of_acme == set()


def test_autocast_lists_are_those_of_mtia(run_plainly: RunScript) -> None:
    """Whatever autocast does to an operator on mtia, it does on the other device."""
    finished = run_plainly(
        """
        import torch
        has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
        of_mtia, of_other = (
            {name for name in torch._C._dispatch_get_all_op_names() if has_kernel(name, key)}
            for key in ("AutocastMTIA", "AutocastPrivateUse1")
        )
        print(len(of_mtia) > 100, of_mtia ^ of_other)
        """,
        TORCH_MTIA_PRIVATEUSE1="acme",
    )
    assert finished.output() == "True set()\n"


def test_gates_for_the_name_are_applied_and_needed(run_plainly: RunScript) -> None:
    """Those of mtia too that replace what holds for one name, whether the modules were imported before or after."""
    finished = run_plainly(
        """
        import importlib.util
        import torch, torch._dynamo
        from tests import gate_checks
        from torch_mtia import privateuse1, torch_version, upstream_gates

        def is_installed(module):
            return importlib.util.find_spec(module.partition(".")[0]) is not None

        privateuse1.enable("acme")
        by_name = [gate for gate in upstream_gates.GATES if gate.by_name]
        for gate in upstream_gates.GATES_OF_OTHER_NAMES + tuple(by_name):
            for module in filter(is_installed, gate.modules) if torch_version.TORCH in gate.versions else ():
                importlib.import_module(gate.filled_by or module)
                replaced = upstream_gates.present(gate, importlib.import_module(module))
                original = upstream_gates.originals[module, gate.name]
                is_needed = gate_checks.is_needed(gate)
                assert is_needed(original), gate.name
                assert not is_needed(replaced), gate.name
        print(len(by_name) > 2)
        """,
        PYTHONPATH=str(Path(__file__).parents[1]),
    )
    assert finished.output() == "True\n"


@pytest.mark.wide
def test_an_encoder_in_evaluation_takes_a_padding_mask(run_plainly: RunScript) -> None:
    finished = run_plainly(
        """
        import torch
        from torch_mtia import privateuse1

        privateuse1.enable("acme")
        layer = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        encoder = torch.nn.TransformerEncoder(layer, 2).eval()
        x, padding = torch.randn(2, 5, 16), torch.arange(5) >= torch.tensor([[5], [3]])
        with torch.no_grad():
            expected = encoder(x, src_key_padding_mask=padding)
            out = encoder.to("acme")(x.to("acme"), src_key_padding_mask=padding.to("acme"))
        torch.testing.assert_close(out.cpu()[~padding], expected[~padding])
        print(encoder.use_nested_tensor)
        """
    )
    assert finished.output() == "True\n"


@pytest.mark.wide
def test_what_pytorch_calls_in_compiled_code_is_not_compiled(run_plainly: RunScript) -> None:
    """As torch.mtia's functions. It calls some where nothing can be."""
    finished = run_plainly(
        """
        import torch
        from torch_mtia import privateuse1
        privateuse1.enable("acme")
        state = torch.acme.get_rng_state()
        torch.compile(torch.acme.set_rng_state)(state)
        print(sum(torch._dynamo.utils.counters["frames"].values()))
        """
    )
    assert finished.output() == "0\n"


def test_a_cached_kernel_belongs_to_the_name_it_was_compiled_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """It names its target, and a process with the other name has no backend for that."""
    monkeypatch.setenv("TORCH_MTIA_PRIVATEUSE1", "acme")
    hashes = {MTIABackend(GPUTarget(name, architecture(), 32)).hash() for name in ("mtia", "acme")}
    assert len(hashes) == 2
