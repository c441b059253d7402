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
        "a diagonal is written, and all of the matrix read",
        "uninitialized",
        """
matrix = torch.empty(4, 4, device="mtia")
MEND
matrix.diagonal().fill_(1)
total = matrix.sum()
""",
        "matrix.zero_()",
        ("aten::sum",),
    ),
    Program(
        "every second column is written",
        "uninitialized",
        """
pairs = torch.empty(8, 6, device="mtia")
pairs[:, ::2] = 1
MEND
row = pairs[3].exp()
""",
        "pairs[:, 1::2] = 0",
        ("aten::exp",),
    ),
    Program(
        "columns of a buffer go to a second one that is read",
        "uninitialized",
        """
x, out = torch.empty(8, 4, device="mtia"), torch.zeros(8, 6, device="mtia")
MEND
out[:, 1:5] = x
total = out[:, 4].sum()
""",
        "x.fill_(1)",
        ("aten::sum",),
    ),
    Program(
        "where chooses among what nothing has written",
        "uninitialized",
        """
x, other = torch.ones(10, device="mtia"), torch.empty(10, device="mtia")
MEND
y = torch.where(x > 0, x, other)
""",
        "other[:5] = 1",
        ("aten::where",),
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
    Program(
        "an operator in place reads what it changes",
        "uninitialized",
        """
total, x = torch.empty(10, device="mtia"), torch.ones(10, device="mtia")
MEND
total.mul_(x)
""",
        "total.fill_(1)",
        ("aten::mul",),
    ),
    Program(
        "an operator with its result among its arguments",
        "uninitialized",
        """
scale, x = torch.empty(10, device="mtia"), torch.ones(10, device="mtia")
MEND
torch.lerp(scale, x, 0.5, out=scale)
""",
        "scale.zero_()",
        ("aten::lerp",),
    ),
    Program(
        "rows are added to nothing",
        "uninitialized",
        """
sums, index = torch.empty(4, 3, device="mtia"), torch.tensor([0, 2, 0], device="mtia")
MEND
sums.index_add_(0, index, torch.ones(3, 3, device="mtia"))
""",
        "sums.zero_()",
        ("aten::index_add",),
    ),
    Program(
        "numbers are accumulated at indices",
        "uninitialized",
        """
counts, index = torch.empty(4, device="mtia"), torch.tensor([0, 2, 0], device="mtia")
MEND
counts.index_put_((index,), torch.ones(3, device="mtia"), accumulate=True)
""",
        "counts.zero_()",
        ("aten::_index_put_impl_",),
    ),
    Program(
        "numbers are scattered onto a sum",
        "uninitialized",
        """
counts, index = torch.empty(4, device="mtia"), torch.tensor([0, 2, 0], device="mtia")
MEND
counts.scatter_add_(0, index, torch.ones(3, device="mtia"))
""",
        "counts.zero_()",
        ("aten::scatter_add",),
    ),
    Program(
        "a product is added to nothing",
        "uninitialized",
        """
out, matrix = torch.empty(3, 3, device="mtia"), torch.ones(3, 3, device="mtia")
MEND
out.addmm_(matrix, matrix)
""",
        "out.zero_()",
        ("aten::addmm",),
    ),
    Program(
        "an outer product is added to nothing",
        "uninitialized",
        """
out, vector = torch.empty(3, 3, device="mtia"), torch.ones(3, device="mtia")
MEND
out.addr_(vector, vector)
""",
        "out.zero_()",
        ("aten::addr",),
    ),
    Program(
        "a gradient that nobody has set",
        "uninitialized",
        """
x = torch.ones(10, device="mtia", requires_grad=True)
x.grad = torch.empty_like(x)
MEND
(2 * x).sum().backward()
""",
        "x.grad.zero_()",
        ("aten::add",),
    ),
    Program(
        "a fused optimizer with a state that is empty",
        "uninitialized",
        """
weight = torch.nn.Parameter(torch.ones(10, device="mtia"))
weight.grad = torch.ones_like(weight)
optimizer = torch.optim.AdamW([weight], fused=True)
optimizer.step()
optimizer.state[weight]["exp_avg"] = torch.empty_like(weight)
MEND
optimizer.step()
""",
        'optimizer.state[weight]["exp_avg"].zero_()',
        ("aten::_fused_adamw_",),
    ),
    Program(
        "an optimizer on lists with a momentum that is empty",
        "uninitialized",
        """
weight = torch.nn.Parameter(torch.ones(10, device="mtia"))
weight.grad = torch.ones_like(weight)
optimizer = torch.optim.SGD([weight], momentum=0.9, foreach=True)
optimizer.state[weight]["momentum_buffer"] = torch.empty_like(weight)
MEND
optimizer.step()
""",
        'optimizer.state[weight]["momentum_buffer"].zero_()',
        ("aten::_foreach_mul_",),
    ),
    Program(
        "the mean of all batches begins as nothing",
        "uninitialized",
        """
norm = torch.nn.BatchNorm1d(3, device="mtia")
norm.running_mean = torch.empty(3, device="mtia")
MEND
y = norm(torch.randn(4, 3, device="mtia"))
""",
        "norm.running_mean.zero_()",
        ("aten::native_batch_norm",),
    ),
    Program(
        "rows of a table are scaled before they are set",
        "uninitialized",
        """
table, index = torch.empty(4, 3, device="mtia"), torch.tensor([0, 2], device="mtia")
MEND
y = torch.nn.functional.embedding(index, table, max_norm=1.0)
""",
        "table.fill_(1)",
        ("aten::embedding_renorm_",),
    ),
    Program(
        "a bias that every row of a product has is not filled",
        "uninitialized",
        """
x, weight, bias = torch.ones(2, 3, device="mtia"), torch.ones(4, 3, device="mtia"), torch.empty(4, device="mtia")
MEND
y = torch.nn.functional.linear(x, weight, bias)
""",
        "bias.zero_()",
        ("aten::addmm",),
    ),
    Program(
        "what nobody has written is converted, and the result is read",
        "uninitialized",
        """
x = torch.empty(100, device="mtia")
MEND
y = x.half().sum()
""",
        "x[:50] = 1; x[50:] = 2",
        ("aten::sum",),
    ),
    Program(
        "what nobody has written is copied to a transposed tensor, and the result is read",
        "uninitialized",
        """
x = torch.empty(20, 30, device="mtia")
MEND
y = x.t().contiguous().sum()
""",
        "x.fill_(1)",
        ("aten::sum",),
    ),
]

RIGHT = {
    "a term whose factor is 0": """
matrix, vector, out = torch.ones(3, 4, device="mtia"), torch.ones(4, device="mtia"), torch.empty(3, device="mtia")
y = torch.mv(matrix, vector)
y = torch.addmv(out, matrix, vector, beta=0)
batch = torch.ones(2, 3, 3, device="mtia")
y = torch.baddbmm(torch.empty(2, 3, 3, device="mtia"), batch, batch, beta=0)
y = torch.empty(3, 4, device="mtia").addr_(torch.ones(3, device="mtia"), vector, beta=0)
y = torch.addr(torch.empty(3, 4, dtype=torch.float64, device="mtia"), torch.ones(3, device="mtia"), vector, beta=0)
y = torch.empty(3, 3, device="mtia").addmm_(matrix, matrix.T, beta=0)
y = torch.empty(2, 3, 3, device="mtia").baddbmm_(batch, batch, beta=0)
y = torch.empty(3, 3, device="mtia").addbmm_(batch, batch, beta=0)
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
    "an index without elements takes nothing of a buffer that is still empty": """
buffer, index = torch.empty(4, 3, device="mtia"), torch.empty(0, dtype=torch.int64, device="mtia")
y = buffer[index], buffer.index_select(0, index), buffer.gather(0, index[:, None]), buffer.take(index)
y = torch.nn.functional.embedding(index, buffer)
y = buffer.index_add_(0, index, torch.empty(0, 3, device="mtia"))
""",
    "what is chosen of a buffer is what is written": """
buffer, mask = torch.empty(4, 3, device="mtia"), torch.tensor([True, True, False, False], device="mtia")[:, None]
buffer[:2] = 1
y = torch.where(mask, buffer, 0), torch.where(~mask, 0.0, buffer), torch.where(mask, buffer, torch.zeros_like(buffer))
y = torch.masked_select(buffer, mask), torch.masked.sum(buffer, mask=mask)
y = torch.zeros(4, 3, device="mtia").masked_scatter_(mask, buffer)
indices, offsets = torch.tensor([0, 1, 1], device="mtia"), torch.tensor([0, 2], device="mtia")
y = torch.nn.functional.embedding_bag(indices, buffer, offsets, mode="sum")
padded, ends = torch.empty(2, 5, 3, device="mtia"), torch.tensor([0, 1, 3], device="mtia")
padded[:, :2] = 1
y = torch.ops.aten._padded_dense_to_jagged_forward(padded, [ends], 3)
""",
    "a compiled function fills a buffer by slices": """
def fill(x, buffer):
    buffer[:, :4] = x.sin()
    buffer[:, 4:] = x.cos()
    return buffer * 2
y = torch.compile(fill)(torch.ones(8, 4, device="mtia"), torch.empty(8, 8, device="mtia")).sum()
y = torch.compile(fill)(torch.ones(8, 4, device="mtia").bfloat16(), torch.empty(8, 8, device="mtia").bfloat16()).sum()
""",
    "a matrix is written column by column": """
matrix, block = torch.empty(6, 4, device="mtia"), torch.ones(6, 1, device="mtia")
for column in range(4):
    matrix[:, column] = block[:, 0]
y = matrix.exp()
channels = torch.empty(2, 4, 3, 3, device="mtia")
torch.cat([torch.ones(2, 1, 3, 3, device="mtia")] * 2, 1, out=channels[:, :2])
channels[:, 2:].copy_(channels[:, :2])
y = channels.sum()
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
    "what random operators write": """
x = [torch.empty(10, device="mtia") for _ in range(9)]
x[0].normal_(), x[1].uniform_(), x[2].bernoulli_(0.5), x[3].random_(5), x[4].exponential_(), x[5].cauchy_()
x[6].log_normal_(), x[7].geometric_(0.5), x[8].bernoulli_(torch.full((10,), 0.5, device="mtia"))
y = sum(x)
weight = torch.nn.init.xavier_uniform_(torch.empty(4, 4, device="mtia"))
y = torch.nn.init.trunc_normal_(torch.empty(4, 4, device="mtia")) + torch.nn.init.orthogonal_(weight)
""",
    "all is written, of another shape or dtype": """
x = torch.empty(3, 4, device="mtia").copy_(torch.ones(4, device="mtia", dtype=torch.int32))
y = torch.empty(3, 4, device="mtia").fill_(torch.tensor(2.0, device="mtia"))
torch._foreach_zero_([z := torch.empty(3, 4, device="mtia")])
torch._foreach_copy_([w := torch.empty(3, 4, device="mtia")], [x])
y = x + y + z + w
x = torch.nn.functional.dropout(x.resize_(2, 6).set_(y), 0.5, inplace=True).clamp_(0, 1)
""",
    "some is written, and nothing read": """
x, mask = torch.empty(4, device="mtia"), torch.tensor([True, False, True, True], device="mtia")
index = torch.tensor([0, 2], device="mtia")
y = x.masked_fill_(mask, 0) + 1
y = torch.empty(4, device="mtia").masked_scatter_(mask, y) + 1
y = torch.empty(4, device="mtia").index_fill_(0, index, 0) + 1
y = torch.empty(4, device="mtia").index_put_((index,), torch.ones(2, device="mtia")) + 1
y = torch.empty(4, device="mtia").put_(index, torch.ones(2, device="mtia")) + 1
y = torch.empty(4, device="mtia").scatter_reduce_(0, index, torch.ones(2, device="mtia"), "sum", include_self=False)
""",
    "sums of the rows that are there": """
buffer, index = torch.empty(4, 3, device="mtia"), torch.tensor([0, 1], device="mtia")
buffer[:2] = 1
y = buffer.clone().index_add_(0, index, torch.ones(2, 3, device="mtia"))
y = buffer.clone().scatter_add_(0, index[:, None], torch.ones(2, 3, device="mtia"))
y = buffer.clone().index_put_((index,), torch.ones(2, 3, device="mtia"), accumulate=True)
""",
    "optimizers make their states": """
for make in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad):
    for how in ("foreach", "fused"):
        weight = torch.nn.Parameter(torch.ones(10, device="mtia"))
        optimizer = make([weight], **{how: True}, **({"momentum": 0.9} if make is torch.optim.SGD else {}))
        for _ in range(3):
            weight.grad = torch.ones_like(weight)
            optimizer.step()
""",
    "a frame is put around a picture": """
y = torch.nn.functional.pad(torch.ones(3, 3, 4, 4, device="mtia"), (1, 1, 1, 1), mode="circular")
""",
}
