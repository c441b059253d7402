"""The functions of `triton.language.extra.libdevice`, by the symbols that Triton's front end writes (`__nv_...`).

    FUNCTIONS["__nv_expf"](b, x)      scalars or vectors

Most are functions of vecmath under another name. `_rz`, `_rd` and `_ru` round toward zero, down and up, as IEEE 754
says, see Note [Directed rounding] in rounding.py.
"""

from torch_mtia.triton.libdevice import integers, numbers, rounding  # noqa: F401  (fill the table)
from torch_mtia.triton.libdevice.table import FUNCTIONS, PREFIX

__all__ = ["FUNCTIONS", "PREFIX"]
