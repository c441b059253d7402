"""Work that makes NaN or infinity out of finite numbers."""

from __future__ import annotations

from sanitizer.corpus import Program

# A step of a model whose gradients are too large for float16 at first.
SCALED = """
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.Linear(8, 8)).to("mtia")
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("mtia", init_scale=2.0**24)
x = torch.ones(4, 8, device="mtia")
def step(loss):
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
"""

NUMBERS = [
    Program(
        "the logarithm of a probability of 0",
        "not finite",
        """
p = torch.tensor([0.5, 0.5, 0.0], device="mtia")
MEND
entropy = -(p * p.log()).sum()
""",
        "p = p.clamp(min=1e-8)",
        ("aten::log",),
    ),
    Program(
        "the square root of 0, differentiated",
        "not finite",
        """
x = torch.zeros(4, device="mtia", requires_grad=True)
y = x
MEND
y.sqrt().sum().backward()
""",
        "y = x + 1e-6",
        ("aten::div",),
    ),
    Program(
        "the length of a vector of zeros, differentiated",
        "not finite",
        """
x = torch.zeros(4, device="mtia", requires_grad=True)
length = (x * x).sum()
MEND
length.sqrt().backward()
""",
        "length = length + 1e-12",
        ("aten::div",),
    ),
    Program(
        "the mean of what a mask selects, which is nothing",
        "not finite",
        """
losses = torch.ones(10, device="mtia")
mask = losses > 2
MEND
loss = losses[mask].mean()
""",
        "mask[0] = True",
        ("aten::mean",),
    ),
    Program(
        "a loss over targets that are all ignored",
        "not finite",
        """
logits = torch.randn(4, 10, device="mtia")
targets = torch.full((4,), -100, device="mtia")
MEND
loss = torch.nn.functional.cross_entropy(logits, targets)
""",
        "targets[0] = 1",
        ("aten::nll_loss_forward",),
    ),
    Program(
        "a product of matrices that float16 does not hold",
        "not finite",
        """
x = torch.full((64, 64), 100.0, device="mtia", dtype=torch.half)
MEND
y = x @ x
""",
        "x = x / 100",
        ("aten::mm",),
    ),
    Program(
        "a conversion to float16 of what that does not hold",
        "not finite",
        """
x = torch.full((10,), 1e6, device="mtia")
MEND
y = x.half()
""",
        "x = x.clamp(max=65504)",
        ("aten::copy_",),
    ),
    Program(
        "a softmax by hand that does not subtract the maximum",
        "not finite",
        """
x = torch.tensor([1000.0, 0.0], device="mtia")
MEND
e = x.exp()
p = e / e.sum()
""",
        "x = x - x.max()",
        ("aten::exp",),
    ),
    Program(
        "a softmax over a row that is masked throughout",
        "not finite",
        """
scores = torch.zeros(4, 4, device="mtia")
mask = torch.ones(4, 4, device="mtia", dtype=torch.bool).tril(-1)
MEND
p = scores.masked_fill(~mask, float("-inf")).softmax(-1)
""",
        "mask = mask | torch.eye(4, device='mtia', dtype=torch.bool)",
        ("aten::_softmax",),
    ),
    Program(
        "a sum in the space of logarithms, of nothing but log(0)",
        "not finite",
        """
x = torch.full((4,), float("-inf"), device="mtia")
MEND
largest = x.max()
y = (x - largest).exp().sum().log() + largest
""",
        "x[0] = 0",
        ("aten::add",),
    ),
    Program(
        "the variance of one number",
        "not finite",
        """
x = torch.ones(1, device="mtia")
MEND
y = x.var()
""",
        "x = torch.ones(4, device='mtia')",
        ("aten::var",),
    ),
    Program(
        "an angle whose cosine was rounded up beyond 1",
        "not finite",
        """
cosine = torch.full((3,), 1.0000001, device="mtia")
MEND
angle = cosine.acos()
""",
        "cosine = cosine.clamp(-1, 1)",
        ("aten::acos",),
    ),
    Program(
        "log1p at the end of its range",
        "not finite",
        """
p = torch.ones(3, device="mtia")
MEND
y = (-p).log1p()
""",
        "p = p * (1 - 1e-6)",
        ("aten::log1p",),
    ),
    Program(
        "logit of a probability of 1",
        "not finite",
        """
p = torch.full((3,), 20.0, device="mtia").sigmoid()
eps = None
MEND
y = p.logit(eps)
""",
        "eps = 1e-6",
        ("aten::logit",),
    ),
    Program(
        "a normalization by a standard deviation of 0",
        "not finite",
        """
x = torch.ones(8, 4, device="mtia")
std = x.std(0)
MEND
y = (x - x.mean(0)) / std
""",
        "std = std + 1e-5",
        ("aten::div",),
    ),
    Program(
        "a layer normalization without an epsilon",
        "not finite",
        """
x, eps = torch.ones(8, 4, device="mtia"), 0.0
MEND
y = torch.nn.functional.layer_norm(x, (4,), eps=eps)
""",
        "eps = 1e-5",
        ("aten::native_layer_norm",),
    ),
    Program(
        "a learning rate with which the weights grow beyond all bounds",
        "not finite",
        """
w = torch.nn.Parameter(torch.full((4,), 2.0, device="mtia"))
lr = 10.0
MEND
optimizer = torch.optim.SGD([w], lr=lr)
for _ in range(8):
    optimizer.zero_grad()
    (w**4).sum().backward()
    optimizer.step()
""",
        "lr = 1e-3",
        ("aten::pow",),
    ),
    Program(
        "Adam without an epsilon, and a gradient of 0",
        "not finite",
        """
w = torch.nn.Parameter(torch.ones(4, device="mtia"))
w.grad, eps = torch.zeros(4, device="mtia"), 0.0
MEND
torch.optim.Adam([w], eps=eps, fused=True).step()
""",
        "eps = 1e-8",
        ("aten::_fused_adam_",),
    ),
    Program(
        "a power below 1 of 0, differentiated",
        "not finite",
        """
x = torch.zeros(4, device="mtia", requires_grad=True)
y = x
MEND
y.pow(0.5).sum().backward()
""",
        "y = x + 1e-6",
        ("aten::pow",),
    ),
    Program(
        "a loss that is scaled by hand, by more than float16 holds in backward",
        "not finite",
        """
layer = torch.nn.Linear(16, 16, device="mtia", dtype=torch.half)
x = torch.full((64, 16), 4.0, device="mtia", dtype=torch.half)
scale = 65536.0
MEND
(layer(x).float().sum() * scale).backward()
""",
        "scale = 8.0",
        ("aten::copy_",),
    ),
    Program(
        "a division in place by 0",
        "not finite",
        """
x, total = torch.ones(10, device="mtia"), torch.zeros((), device="mtia")
MEND
x[2:5].div_(total)
""",
        "total += 1",
        ("aten::div",),
    ),
    Program(
        "a side stream divides by 0",
        "not finite",
        """
x = torch.zeros(10, device="mtia")
MEND
side.wait_stream(main)
with side:
    y = x.reciprocal()
main.wait_stream(side)
""",
        "x += 1",
        ("aten::reciprocal",),
    ),
    Program(
        "an alignment of more targets than there are steps",
        "not finite",
        """
log_probs = torch.randn(8, 4, 20, device="mtia").log_softmax(2)
targets = torch.randint(1, 20, (4, 10), device="mtia")
num_targets = torch.full((4,), 10)
MEND
lengths = torch.full((4,), 8), num_targets
loss = torch.nn.functional.ctc_loss(log_probs, targets, *lengths, reduction="sum")
""",
        "num_targets.fill_(3)",
        ("aten::_ctc_loss",),
    ),
    Program(
        "an operator that falls back",
        "not finite",
        """
x = torch.zeros(4, device="mtia")
MEND
y = torch.special.scaled_modified_bessel_k0(x) + torch.special.spherical_bessel_j0(x)
""",
        "x += 1",
        ("aten::special_scaled_modified_bessel_k0",),
    ),
    Program(
        "a graph is replayed with numbers that it was not captured with",
        "not finite",
        """
x = torch.ones(4, device="mtia")
graph = torch.mtia.MTIAGraph()
with torch.mtia.graph(graph):
    y = x.log()
x.zero_()
MEND
graph.replay()
""",
        "x += 1",
        ("aten::log",),
    ),
    Program(
        "a graph with a backward() in it is replayed at 0",
        "not finite",
        """
x = torch.ones(4, device="mtia", requires_grad=True)
graph = torch.mtia.MTIAGraph()
torch.autograd.grad(x.sqrt().sum(), x)
with torch.mtia.graph(graph):
    (gradient,) = torch.autograd.grad(x.sqrt().sum(), x)
x.detach().zero_()
MEND
graph.replay()
""",
        "x.detach().add_(1)",
        ("aten::div",),
    ),
    Program(
        "a model whose gradients are scaled takes a logarithm of 0",
        "not finite",
        SCALED
        + """
for _ in range(3):
    with torch.autocast("mtia", torch.float16):
        output = model(x)
    p = output.float() * 0
    MEND
    step(p.log().sum())
""",
        "p = p + 1",
        ("aten::log",),
    ),
    Program(
        "the backward of a scaled loss divides by 0 in float32",
        "not finite",
        SCALED
        + """
with torch.autocast("mtia", torch.float16):
    output = model(x)
p = output.float() * 0
MEND
step(p.sqrt().sum())
""",
        "p = p + 1",
        ("aten::div",),
    ),
    Program(
        "a target that is longer than its input",
        "not finite",
        """
log_probs = torch.randn(5, 2, 20, device="mtia").log_softmax(2).requires_grad_()
targets, lengths = torch.randint(1, 20, (2, 10), device="mtia"), (torch.full((2,), 5), torch.full((2,), 10))
zero_infinity = False
MEND
loss = torch.nn.functional.ctc_loss(log_probs, targets, *lengths, zero_infinity=zero_infinity)
loss.backward()
""",
        "zero_infinity = True",
        ("aten::_ctc_loss",),
    ),
]

# Infinity and NaN on purpose, and what only passes them on.
FINE = {
    "lanes of a kernel that are masked off, and constants": """
kernel = triton_kernel('''
def kernel(x, out, n, scale, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    mask = offsets < n
    values = tl.load(x + offsets, mask=mask, other=0.0)
    tl.store(out + offsets, tl.log(values) / values, mask=mask)
    tl.store(out + BLOCK + offsets, tl.where(mask, values, -float("inf")))
    tl.store(out + 2 * BLOCK + offsets, values * scale, mask=mask)
    tl.store(out + 3 * BLOCK, tl.max(tl.where(mask & (offsets < 0), values, -float("inf"))))
''')
x, out = torch.full((100,), 2.0, device="mtia"), torch.zeros(1000, device="mtia")
kernel[(1,)](x, out, 100, float("inf"), BLOCK=128)
""",
    "numbers that a kernel passes on": """
kernel = triton_kernel('''
def kernel(x, out, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(x + offsets)
    tl.store(out + offsets, (values - tl.max(values)) * 2)
''')
x, out = torch.ones(4, 64, device="mtia"), torch.zeros(4, 64, device="mtia")
x[1, 5], x[3, 7] = float("nan"), float("-inf")
kernel[(4,)](x, out, BLOCK=64)
""",
    "numbers that a program is given": """
inf = float("inf")
x = torch.ones(2, 4, device="mtia")
torch.full((4,), inf, device="mtia")
x.clone().fill_(float("nan"))
mask = torch.full((4, 4), -inf, device="mtia").triu(1)
(x @ torch.ones(4, 4, device="mtia") + mask[:2]).softmax(-1)
x.masked_fill(x > 0, -inf)
torch.where(x > 0, -inf, x)
x * inf
x.clamp(min=-inf, max=inf)
torch.nn.functional.pad(x, (1, 1), value=-inf)
x.half() + inf
x.index_fill(1, torch.tensor([1], device="mtia"), inf)
x.scatter(1, torch.zeros(2, 1, dtype=torch.long, device="mtia"), inf)
x[0, 0] = inf
x.nan_to_num(nan=float("nan"))
torch._foreach_mul_([torch.ones(3, device="mtia")], inf)
x.div(torch.tensor(float("nan")))
""",
    "what comes from the host": """
torch.tensor([1.0, float("nan")], device="mtia").half()
torch.tensor([1.0, float("inf")]).half().to("mtia", torch.float)
torch.tensor([[1.0, float("inf")]]).t().to("mtia") + 1
x = torch.ones(3, device="mtia")
x.copy_(torch.tensor([float("nan"), 1.0, float("inf")]))
x.sum()
""",
    "what is passed on": """
x = torch.tensor([1.0, float("nan"), 3.0], device="mtia")
x[torch.tensor([2, 1], device="mtia")]
x.index_select(0, torch.tensor([1], device="mtia"))
x.add_(1).mul_(2)
x.cumsum(0)
x.masked_fill_(torch.tensor([True, False, False], device="mtia"), 0)
x.index_add_(0, torch.tensor([0], device="mtia"), torch.ones(1, device="mtia"))
torch.cat([x, x]).sort()
torch.nn.functional.layer_norm(x, (3,))
x.flip(0).roll(1).expand(4, 3).contiguous()
""",
    "memory that is only written": """
x = torch.ones(1 << 16, device="mtia")
y = torch.full((1 << 16,), float("nan"), device="mtia")
torch.add(x, 1, out=y)
del y
z = torch.empty(1 << 16, device="mtia")
torch.exp(x, out=z)
torch.stack([x, z]).sum()
""",
    "integers and booleans": """
x = torch.tensor([0x7f800000, -1], dtype=torch.int32, device="mtia")
(x * 2, x == x, x.view(torch.float).isnan())
""",
    "pooling pads with what is never taken": """
x = torch.randn(1, 1, 4, 4, device="mtia", requires_grad=True)
torch.nn.functional.max_pool2d(x, 3, padding=1).sum().backward()
""",
    "attention with a causal mask": """
q, k, v = (torch.randn(1, 2, 8, 16, device="mtia", requires_grad=True) for _ in range(3))
torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).sum().backward()
""",
    "norms and deviations of 0, whose derivative PyTorch masks": """
x = torch.zeros(4, device="mtia", requires_grad=True)
x.norm().backward()
torch.linalg.vector_norm(x).backward()
x.std().backward()
torch.ones(3, device="mtia", requires_grad=True).mul(0).cumprod(0).sum().backward()
""",
    "operators made of others, of which one replaces what another one makes": """
torch.ops.aten._safe_softmax(torch.full((2, 3), float("-inf"), device="mtia"), 1)
torch.linalg.pinv(torch.zeros(3, 3, device="mtia"))
""",
    "the logarithm of a sum of nothing": """
mask = torch.tensor([[True], [False]], device="mtia")
x = torch.randn(2, 3, device="mtia", requires_grad=True).masked_fill(mask, float("-inf"))
x.logsumexp(1)
torch.special.logsumexp(x.detach(), (0, 1))
x.detach()[:1].logsumexp(1, keepdim=True)
""",
    "a loss scale that float16 does not hold in backward": """
layer = torch.nn.Linear(16, 16, device="mtia", dtype=torch.half)
x = torch.full((64, 16), 4.0, device="mtia", dtype=torch.half)
scaler = torch.amp.GradScaler("mtia", init_scale=65536.0)
scaler.scale(layer(x).float().sum()).backward()
""",
    "gradients that are scaled until they fit": SCALED
    + """
for _ in range(30):
    with torch.autocast("mtia", torch.float16):
        loss = model(x).sum()
    step(loss)
assert scaler.get_scale() < 2.0**24
""",
    "means and sums that leave out NaN": """
x = torch.full((2, 4), float("nan"), device="mtia", requires_grad=True)
x.nanmean(1)
x.nansum(1).sum().backward()
x.detach().nan_to_num().log1p()
x.detach().nanmedian()
x.detach().nanquantile(0.5, 1)
torch.nanmean(x.detach())
""",
    "distances of 0, whose derivative PyTorch masks": """
x = torch.ones(32, 4, device="mtia", requires_grad=True)
torch.cdist(x, x).sum().backward()
""",
    "a loss over alignments, which keeps the logarithms of probabilities of 0": """
log_probs = torch.randn(50, 4, 20, device="mtia").log_softmax(2)
targets = torch.randint(1, 20, (4, 10), device="mtia")
lengths = torch.full((4,), 50), torch.full((4,), 10)
torch.nn.functional.ctc_loss(log_probs, targets, *lengths)
""",
}
