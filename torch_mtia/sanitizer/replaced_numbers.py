"""NaN and infinity that PyTorch itself makes on purpose, or puts another number in place of."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any


@dataclasses.dataclass(frozen=True)
class Row:
    """Of work for which all of these hold, what is not finite is no finding. Texts are patterns of fnmatch."""

    reason: str
    operator: str = "*"
    node: str = "*"  # of autograd
    file: str = "*"  # one of those that have submitted it
    tensor: str = "*"  # dtype and sizes
    within: str = ""  # an operator made of others, which ...
    replacer: str = ""  # ... has called this one; "": it always does
    numbers: str = "*"  # "NaN", "infinity", "NaN and infinity", or followed by " of infinity", if it reads that
    is_scaled: bool = False  # in backward() of what GradScaler.scale() returned

    def describes(self, finding: Mapping[str, Any]) -> bool:
        work = finding["access"]
        return (
            fnmatchcase(work["node"], self.node)
            and fnmatchcase(work["operator"], self.operator)
            and fnmatchcase(work["tensor"], self.tensor)
            and (not self.within or self.within in work["within"])
            and (not self.is_scaled or work["is_scaled"])
            and fnmatchcase(_numbers_of(finding), self.numbers)
            and (self.file == "*" or any(fnmatchcase(frame["filename"], self.file) for frame in work["frames"]))
        )


def _numbers_of(finding: Mapping[str, Any]) -> str:
    made = " and ".join(name for name, count in (("NaN", "nan"), ("infinity", "infinite")) if finding[count])
    return f"{made} of infinity" if finding["reads_infinite"] else made


_DIVIDES = "its formula divides by 0, and a mask puts 0 in place of the result"
_LOGARITHM = "its formula takes the logarithm of 0, or has 0 * inf, and a mask puts 0 in place of the result"
ROWS = (
    *(
        Row(_DIVIDES, node=f"{name}Backward[0-9]")
        for name in (
            "Angle",
            "Atan2",
            "Cdist",
            "Copysign",
            "Cumprod",
            "Dist",
            "EuclideanDist",
            "LinalgHouseholderProduct",
            "LinalgVectorNorm",
            "Norm",
            "Renorm",
            "Sgn",
            "Sinc",
            "Std",
            "StdMean",
        )
    ),
    *(
        Row(_LOGARITHM, node=f"{name}Backward[0-9]")
        for name in ("Logaddexp", "Logaddexp2", "Logcumsumexp", "SpecialXlog1Py", "Xlog1Py", "Xlogy")
    ),
    Row("with respect to an exponent it takes the logarithm of 0, and puts 0 in its place", node="PowBackward1"),
    Row("a row that is masked throughout becomes 0", within="aten::_safe_softmax", replacer="aten::where"),
    Row("singular values of 0 are not inverted", within="aten::linalg_pinv", replacer="aten::where"),
    Row(
        "Stirling's formula holds for targets above 1, and is 0 for others",
        within="aten::poisson_nll_loss",
        replacer="aten::masked_fill_",
    ),
    Row("a sum of nothing but exp(-inf) is 0", operator="aten::log", within="aten::logsumexp", numbers="infinity"),
    Row("zero_infinity=True", within="aten::ctc_loss", replacer="aten::where"),
    Row("log(0) among the probabilities that are kept for backward()", operator="aten::_ctc_loss", tensor="*,*,*"),
    Row("`info` tells of a singular matrix, and functions without it raise an error", operator="aten::*linalg_*_ex"),
    Row("the mean of nothing but NaN is NaN", within="aten::nanmean"),
    Row("the first step divides by 0, and does not use the result", file="*/torch/optim/radam.py"),
    *(
        Row("too large for float16: the step is left out", tensor=tensor, numbers="infinity", is_scaled=True)
        for tensor in ("float16*", "2 bytes")  # of an operator, and of a Triton kernel
    ),
    Row("comes of such a gradient", numbers="NaN*of infinity", is_scaled=True),
    Row("an infinite norm makes all 0 * inf", file="*/torch/nn/utils/clip_grad.py", numbers="NaN*of infinity"),
)


def composites(rows: Iterable[Row] = ROWS) -> dict[str, str]:
    """Returns operators made of others, each with what replaces its numbers."""
    return {row.within: row.replacer for row in rows if row.within}


def are_expected(finding: Mapping[str, Any]) -> bool:
    return any(row.describes(finding) for row in ROWS)
