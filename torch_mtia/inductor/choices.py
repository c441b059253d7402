"""Inductor's choices for mtia, beside block sizes (block_sizes.py)."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import torch
from torch._inductor import config
from torch._inductor.choices import InductorChoices
from torch._inductor.lookup_table.choices import LookupTableChoices
from torch._inductor.runtime.hints import ReductionHint
from torch._inductor.runtime.runtime_utils import next_power_of_2
from torch._inductor.select_algorithm import ExternKernelChoice
from torch._inductor.virtualized import V

from torch_mtia import backend
from torch_mtia.inductor import guardrails
from torch_mtia.inductor.cache_key import identity

if TYPE_CHECKING:
    from torch._inductor.codegen.simd_kernel_features import SIMDKernelFeatures
    from torch._inductor.kernel_inputs import KernelInputs
    from torch._inductor.kernel_template_choice import KernelTemplateChoice
    from torch._inductor.scheduler import BaseSchedulerNode, Scheduler

# A row that is reduced at once is read once. Milliseconds on one core at 2.8 GHz with AVX-512, at once and in blocks:
# softmax of 2048 x 8192: 19.4, 30.1; of 512 x 50257, padded to 65536: 36.8, 42.0; sum of 2048 x 2048: 0.85, 1.37.
LONGEST_ROW = 1 << 16
# Rows of a length that varies are reduced at once if the longest are not many times longer than those of the first
# call: as many are reduced together as is good for those, and a block is as long as the longest.
MOST_PADDING = 4


class MTIAChoices(LookupTableChoices):
    """Upstream's choices, but for kernels on mtia. Those of `torch._inductor.config.lookup_table.table` come first."""

    def _get_lookup_table(self) -> dict[str, list[dict[str, Any]]]:
        """Upstream's needs CUDA."""
        return config.lookup_table.table or {}

    @staticmethod
    def _get_device_key(device: torch.device) -> str | None:  # type: ignore[override] # upstream's keeps its answers
        if device.type == backend.device_type():
            return str(backend.device_module().get_device_properties(device.index)["architecture"])
        return LookupTableChoices._get_device_key(device)

    def uuid(self) -> str:
        """For the keys of Inductor's caches."""
        return identity()

    @staticmethod
    def should_use_persistent_reduction(features: SIMDKernelFeatures, cooperative_reduction: bool) -> bool:
        """Whether a kernel has all of what it reduces in one block. For other axes than the last it has not: there it
        adds one row after the other to sums of many columns."""
        if not _on_mtia() or not config.triton.persistent_reductions or cooperative_reduction:
            return InductorChoices.should_use_persistent_reduction(features, cooperative_reduction)
        first = next_power_of_2(int(V.graph.sizevars.optimization_hint(features.reduction_numel)))
        longest = min(LONGEST_ROW, MOST_PADDING * first)
        is_short = V.graph.sizevars.statically_known_leq(features.reduction_numel, longest)
        return bool(is_short) and features.get_reduction_hint() == ReductionHint.INNER

    @staticmethod
    def can_fuse(
        scheduler: Scheduler, node1: BaseSchedulerNode, node2: BaseSchedulerNode, shared_data_score: int
    ) -> bool:
        """Also refuses fusions, epilogues of templates among them, beyond the limit of guardrails.py."""
        most = guardrails.limit()
        exceeds = (
            most is not None
            and _is_mtia(node1.get_device())
            and scheduler.fusion_prevent_too_many_reads_and_writes(node1, node2, most)
        )
        return not exceeds and InductorChoices.can_fuse(scheduler, node1, node2, shared_data_score)

    def get_config_heuristics(self, device_type: str | None = "cuda") -> Any:
        """Upstream lists the devices by name."""
        return super().get_config_heuristics("mtia" if device_type == backend.device_type() else device_type)

    def _finalize_template_configs(
        self,
        template_choices: dict[str, Generator[KernelTemplateChoice, None, None]],
        kernel_inputs: KernelInputs,
        templates: list[Any],
        op_name: str,
        kwarg_overrides: dict[str, dict[str, Any]] | None = None,
    ) -> list[KernelTemplateChoice]:
        """Drops templates whose operands are more than the limit of guardrails.py allows."""
        choices = super()._finalize_template_configs(
            template_choices, kernel_inputs, templates, op_name, kwarg_overrides
        )
        most = guardrails.limit()
        if most is None or kernel_inputs.device_type != backend.device_type() or len(kernel_inputs.nodes()) < most:
            return choices
        return [choice for choice in choices if isinstance(choice.template, ExternKernelChoice)]


def _on_mtia() -> bool:
    return _is_mtia(V.graph.current_device)


def _is_mtia(device: torch.device | None) -> bool:
    return device is not None and device.type == backend.device_type()
