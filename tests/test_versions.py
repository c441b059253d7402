"""What the package takes for granted holds in every supported version of PyTorch, by the records of tests/recorded.

A test that fails says which version does not fit, also where that version is not installed. `make record TORCH=2.15.0`
writes the record of a version: after a new one is supported, and after the sources use another name or operator.
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import triton

from tools.codegen import upstream
from tools.codegen.generate import OVERLAY, ROOT, generate
from tools.codegen.merge import OverlayError
from tools.versions import names, operators
from torch_mtia._versions import SUPPORTED_TORCH, TRITON_OF, minor

pytestmark = pytest.mark.in_tree("the records are of the tree, whatever the device is called")

VERSIONS = [f"{major}.{number}" for major, number in SUPPORTED_TORCH]

DIFFERENT = {
    "torch._dynamo:graph_bytecode_inputs.index_to_external_object_weakref": "a gate's, of the versions before 2.15",
    "torch._functorch._aot_autograd.autograd_cache:AOTAutogradCacheDetails.__init__": "passes on the rest",
    "torch._functorch.compile_utils:fx_graph_cse": "the replacement passes on what else it is given",
    "torch._functorch.partitioners:fx_graph_cse": "the same",
    "torch._inductor.freezing:fx_graph_cse": "the same",
    "torch._inductor.compile_fx:cudagraphify": "graphs.traits takes what it knows and leaves the rest",
    "torch._inductor.codegen.mtia.device_op_overrides:MTIADeviceOpOverrides.aten_device_type": "asked for from 2.15 on",
    "torch._inductor.codegen.mtia.device_op_overrides:MTIADeviceOpOverrides.uses_gpu_cpp_wrapper": "the same",
    "torch._inductor.cpp_builder:get_cpp_torch_device_options": "the replacement passes on all that it is given",
    "torch._inductor.runtime.benchmarking:Benchmarker.benchmark_gpu_with_cuda_graph": "the same",
    "torch._inductor.utils:get_device_tflops": "the replacement takes the device, which older versions do not give",
    "torch.utils._runtime_estimation:get_device_tflops": "the same",
    "torch.utils._runtime_estimation:get_gpu_dram_gbps": "the row names the module before 2.15",
    "torch.distributed.distributed_c10d:_new_process_group_helper": "the replacement passes on what else it is given",
    "torch.distributed.tensor._ops:_math_ops.vector_norm_strategy": "norms.py has a case for each version",
    "torch.distributed.tensor._ops:_math_ops.vector_norm_single_dim_strategy": "the same",
    "torch.distributed.tensor._ops.single_dim_strategy:register_single_dim_strategy": "the same",
    "torch.distributed.tensor._ops.utils:expand_to_full_mesh_op_strategy": "called without what differs",
    "torchgen:dest.RegisterDispatchKey": "one more parameter, with a default",
    "triton._C.libtriton:passes.ttir.add_rewrite_tensor_pointer": "torch_version.rewrite_block_pointers asks for it",
    "triton.backends.compiler:BaseBackend.add_stages": "takes the language, and does without it",
    "triton.language:advance": "torch_version.has_block_pointers asks for it",
    "triton.language:dot": "out_dtype is given where it matters",
    "triton.language:load": "without block pointers there is nothing to check and to pad",
    "triton.language:store": "the same",
}
"""Names that differ between the versions, and why the package works with each."""


@pytest.fixture(scope="module")
def facts() -> dict[str, dict[str, str]]:
    """By version and name."""
    return {version: upstream.record(version)["names"] for version in VERSIONS}


def test_there_is_a_record_of_every_supported_version() -> None:
    assert sorted(path.stem for path in upstream.RECORDED.glob("*.yaml")) == VERSIONS


@pytest.mark.parametrize("version", VERSIONS)
def test_the_overlay_fits(version: str, tmp_path: Path) -> None:
    """All that a build does before it compiles."""
    assert generate(tmp_path, OVERLAY, upstream.recorded(version))


def test_an_operator_that_is_structured_in_one_version_is_found_in_all(tmp_path: Path) -> None:
    overlay = tmp_path / "overlay.yaml"
    text = OVERLAY.read_text().replace(", structured: False", "")
    assert text != OVERLAY.read_text()
    overlay.write_text(text)
    generate(tmp_path / "generated", overlay, upstream.recorded("2.13"))
    for version in ("2.14", "2.15"):
        with pytest.raises(OverlayError, match="_scaled_mm_v2 is structured and delegates"):
            generate(tmp_path / "generated", overlay, upstream.recorded(version))


def test_lists_of_an_operator_have_the_type_that_the_dispatcher_knows(tmp_path: Path) -> None:
    """Of one that is structured in some versions, and must not have another type there than the CPU's kernel."""
    registered = {}
    for version in VERSIONS:
        generate(tmp_path / version, OVERLAY, upstream.recorded(version))
        text = "".join(path.read_text() for path in (tmp_path / version).glob("Register_*.cpp"))
        registered[version] = re.findall(r'm\.impl\("(\S+)", &torch_mtia::WithListRefs<', text)
    products = ["_scaled_mm_v2", "_scaled_mm_v2.out"]
    assert registered == {"2.13": [], "2.14": products, "2.15": products}


def test_a_row_is_of_the_versions_that_it_names(tmp_path: Path) -> None:
    overlay = tmp_path / "overlay.yaml"
    row = "- operator: relu\n  torch: '{}'\n  kernel: relu\n"
    overlay.write_text(row.format("<2.14") + row.format(">=2.14").replace("kernel: relu", "kernel: relu_mtia"))
    kernels = {}
    for version in VERSIONS:
        generate(tmp_path / version, overlay, upstream.recorded(version))
        kernels[version] = "relu_mtia" in (tmp_path / version / "MTIANativeFunctions.h").read_text()
    assert kernels == {"2.13": False, "2.14": True, "2.15": True}
    overlay.write_text(row.format("2.14"))
    with pytest.raises(OverlayError, match=rf"^{overlay}:1: `torch` is the versions that have the row"):
        generate(tmp_path / "mistaken", overlay)


@pytest.mark.parametrize("version", VERSIONS)
def test_every_name_that_is_used_is_recorded(version: str, facts: dict[str, dict[str, str]]) -> None:
    used = {name.removesuffix("()") for name in names.used()}
    assert not used - facts[version].keys(), f"make record TORCH={version}.0, or the newest of {version}"
    assert not facts[version].keys() - used, f"no longer used: make record TORCH={version}.0"


def test_names_are_the_same_in_every_version_but_those_listed(facts: dict[str, dict[str, str]]) -> None:
    gates = names.used_by_gates()
    in_sources = {name.removesuffix("()") for name in names.used_in_sources()}
    differing = {}
    for name in facts[VERSIONS[0]]:
        versions = SUPPORTED_TORCH if name in in_sources or name not in gates else gates[name]
        found = [facts[f"{major}.{number}"].get(name, "not recorded") for major, number in versions]
        if len(set(found)) > 1:
            differing[name] = found
    assert {name: differing[name] for name in differing.keys() - DIFFERENT.keys()} == {}
    assert DIFFERENT.keys() - differing.keys() == set(), "no longer different"


@pytest.mark.parametrize("version", VERSIONS)
def test_what_packages_use_of_cuda_is_declared(version: str) -> None:
    declared = "".join(path.read_text() for path in (ROOT / "csrc" / "aoti" / "cuda").glob("*.h"))
    assert set(upstream.record(version)["cuda"]) <= set(re.findall(r"\bcuda[A-Z]\w*", declared))


def test_the_record_is_that_of_what_is_installed() -> None:
    """And so tells the truth, as far as can be seen here."""
    if minor(triton.__version__) != TRITON_OF[SUPPORTED_TORCH[VERSIONS.index(minor(torch.__version__))]]:
        pytest.skip("the Triton that is installed is not that of this PyTorch")
    recorded = upstream.record(minor(torch.__version__))
    installed = upstream.installed()
    rows = {row["func"]: row for row in operators.used(upstream.load_rows(OVERLAY), installed.rows)}
    assert {row["func"]: operators.without_lines(row) for row in recorded["operators"]} == rows
    assert recorded["cuda"] == names.of_cuda()
    kept = {name: fact for name, fact in recorded["names"].items() if not name.startswith("torch._C:")}
    script = "import json, sys; from tools.versions import names; print(json.dumps(names.facts(json.load(sys.stdin))))"
    found = subprocess.run(
        [sys.executable, "-c", script],
        input=json.dumps(sorted(names.used())),
        cwd=ROOT,
        env={**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
        stdout=subprocess.PIPE,
        text=True,
        timeout=600,
        check=True,
    )
    now = json.loads(found.stdout)
    assert {name: now.get(name) for name in kept} == kept


def test_names_are_found_in_sources() -> None:
    text = """
import torch._inductor.config
from torch._inductor import ir as inductor_ir, lowering
from torch._dynamo.utils import counters
import triton.language as tl

class Buffer(inductor_ir.Buffer):
    def get_size(self):
        return []

def use(lowering):
    torch._inductor.config.triton.unique_kernel_names = inductor_ir.TensorBox.create(1)
    return tl.load, torch.add, lowering.lowerings
"""
    assert set(names.used_in(ast.parse(text))) == {
        "torch._inductor:ir",
        "torch._inductor:lowering",
        "torch._dynamo.utils:counters",
        "torch:_inductor.config.triton.unique_kernel_names",
        "torch._inductor:ir.TensorBox.create()",
        "torch._inductor:ir.Buffer",
        "torch._inductor:ir.Buffer.get_size()",
        "triton.language:",
        "triton.language:load",
        "torch:add",
    }
