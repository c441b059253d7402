"""Reads of memory that nothing has written."""

from __future__ import annotations

from sanitizer.corpus import Program

UNINITIALIZED = [
    Program(
        "torch.empty in place of torch.zeros",
        "uninitialized",
        """
total = torch.empty(100, device="mtia")
MEND
total += 1
""",
        "total.zero_()",
        ("aten::add",),
    ),
    Program(
        "half of a buffer is written, and all of it read",
        "uninitialized",
        """
buffer = torch.empty(100, device="mtia")
buffer[:50] = 1
MEND
y = buffer.sum()
""",
        "buffer[50:] = 0",
        ("aten::sum",),
    ),
    Program(
        "a result is read that no operator has filled",
        "uninitialized",
        """
x, out = torch.ones(10, device="mtia"), torch.empty(10, device="mtia")
MEND
y = out * 2
""",
        "torch.exp(x, out=out)",
        ("aten::mul",),
    ),
    Program(
        "empty_like keeps no values",
        "uninitialized",
        """
x = torch.ones(10, device="mtia")
y = torch.empty_like(x)
MEND
z = x + y
""",
        "y.copy_(x)",
        ("aten::add",),
    ),
    Program(
        "a grown tensor is read to its new end",
        "uninitialized",
        """
x = torch.ones(10, device="mtia")
x.resize_(100000)
MEND
y = x.sum()
""",
        "x[10:] = 0",
        ("aten::sum",),
    ),
    Program(
        "new_empty for a mask",
        "uninitialized",
        """
x = torch.ones(10, device="mtia")
mask = x.new_empty(10, dtype=torch.bool)
MEND
y = x.masked_fill(mask, 0)
""",
        "mask.fill_(True)",
        ("aten::masked_fill_",),
    ),
    Program(
        "a buffer goes to the host before it is filled",
        "uninitialized",
        """
x = torch.empty(10, device="mtia")
MEND
y = x.cpu()
""",
        "x.fill_(1)",
        ("copy",),
    ),
    Program(
        "a parameter without an initialization",
        "uninitialized",
        """
weight = torch.nn.Parameter(torch.empty(16, 16, device="mtia"))
MEND
y = torch.nn.functional.linear(torch.ones(4, 16, device="mtia"), weight)
""",
        "torch.nn.init.ones_(weight)",
        ("aten::mm",),
    ),
]
