"""Which templates, with which configurations, Inductor tries for mtia under max-autotune.

Importing this module registers them; see torch/_inductor/template_heuristics.
"""

from __future__ import annotations

from torch._inductor.kernel.bmm import aten_bmm_dtype
from torch._inductor.kernel.mm import aten_mm_dtype
from torch._inductor.template_heuristics.aten import ATenConfigHeuristics
from torch._inductor.template_heuristics.registry import register_template_heuristic

for _template in (aten_mm_dtype, aten_bmm_dtype):
    register_template_heuristic(_template.uid, "mtia")(ATenConfigHeuristics)
