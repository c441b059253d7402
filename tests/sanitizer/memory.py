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
    Program(
        "a number is asked for before it is computed",
        "uninitialized",
        """
loss = torch.empty((), device="mtia")
MEND
value = loss.item()
""",
        "loss.fill_(1)",
        ("aten::_local_scalar_dense",),
    ),
    Program(
        "a copy of what nothing has written is used",
        "uninitialized",
        """
x = torch.empty(10, device="mtia")
MEND
y = x.clone()
z = y + 1
""",
        "x.fill_(1)",
        ("aten::add",),
    ),
    Program(
        "rows are taken of a table that nothing has written",
        "uninitialized",
        """
table = torch.empty(10, 4, device="mtia")
MEND
rows = table[torch.tensor([1, 3], device="mtia")]
""",
        "table[:5] = 1",
        ("aten::index",),
    ),
]

RIGHT = {
    "a term whose factor is 0": """
matrix, vector, out = torch.ones(3, 4, device="mtia"), torch.ones(4, device="mtia"), torch.empty(3, device="mtia")
y = torch.mv(matrix, vector)
y = torch.addmv(out, matrix, vector, beta=0)
batch = torch.ones(2, 3, 3, device="mtia")
y = torch.baddbmm(torch.empty(2, 3, 3, device="mtia"), batch, batch, beta=0)
""",
    "a permutation is turned around": """
order = torch.arange(4, device="mtia").flip(0)
inverse = torch.empty_like(order)
inverse.scatter_(0, order, torch.arange(4, device="mtia"))
y = inverse + 1
""",
    "rows are put into a cache": """
cache = torch.empty(4, 4, device="mtia")
cache.index_copy_(0, torch.arange(4, device="mtia"), torch.ones(4, 4, device="mtia"))
y = cache + 1
""",
    "rows are taken of the part of a buffer that is written": """
buffer, index = torch.empty(4, 3, device="mtia"), torch.tensor([0, 1], device="mtia")
buffer[:2] = 1
y = buffer[index], buffer.index_select(0, index), buffer.gather(0, index[:, None]), buffer.take(index)
y = torch.nn.functional.embedding(index, buffer)
""",
    "the written part of a copy is used": """
buffer = torch.empty(8, device="mtia")
buffer[:4] = 1
copy = buffer.clone()
y = copy[:4] + 1
""",
    "memory that grows before it is written": """
x = torch.empty(3, device="mtia").resize_(10).fill_(1)
y = x + 1
""",
    "a frame is put around a picture": """
y = torch.nn.functional.pad(torch.ones(3, 3, 4, 4, device="mtia"), (1, 1, 1, 1), mode="circular")
""",
}
