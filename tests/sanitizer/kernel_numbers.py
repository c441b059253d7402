"""Triton kernels that make NaN or infinity out of finite numbers."""

from __future__ import annotations

from sanitizer.corpus import Program

PROGRAMS = [
    Program(
        "a softmax in a kernel that does not subtract the maximum",
        "not finite",
        """
kernel = triton_kernel('''
def kernel(x, out, n, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    values = tl.load(x + offsets, mask=offsets < n, other=-float("inf"))
    MEND
    e = tl.exp(values)
    tl.store(out + offsets, e / tl.sum(e), mask=offsets < n)
''')
x, out = torch.linspace(0, 1000, 100, device="mtia"), torch.zeros(100, device="mtia")
kernel[(1,)](x, out, 100, BLOCK=128)
""",
        "values -= tl.max(values)",
        ("kernel", "kernel"),
    ),
    Program(
        "a normalization in a kernel without an epsilon",
        "not finite",
        """
kernel = triton_kernel('''
def kernel(x, out, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(x + offsets)
    values -= tl.sum(values) / BLOCK
    variance = tl.sum(values * values) / BLOCK
    MEND
    tl.store(out + offsets, values / tl.sqrt(variance))
''')
x, out = torch.ones(4, 64, device="mtia"), torch.zeros(4, 64, device="mtia")
kernel[(4,)](x, out, BLOCK=64)
""",
        "variance += 1e-5",
        ("kernel", "kernel"),
    ),
    Program(
        "a row of a kernel's softmax that is masked throughout",
        "not finite",
        """
kernel = triton_kernel('''
def kernel(x, out, n, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    wanted = offsets < n
    MEND
    values = tl.where(wanted, tl.load(x + offsets), -float("inf"))
    e = tl.exp(values - tl.max(values))
    tl.store(out + offsets, e / tl.sum(e))
''')
x, out = torch.ones(64, device="mtia"), torch.zeros(64, device="mtia")
kernel[(1,)](x, out, 0, BLOCK=64)
""",
        "wanted = offsets <= n",
        ("kernel", "kernel"),
    ),
    Program(
        "a kernel stores as float16 what that does not hold",
        "not finite",
        """
kernel = triton_kernel('''
def kernel(x, out, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    total = tl.load(x + offsets) * 1000
    MEND
    tl.store(out + offsets, total.to(tl.float16))
''')
x, out = torch.full((64,), 100.0, device="mtia"), torch.zeros(64, device="mtia", dtype=torch.half)
kernel[(1,)](x, out, BLOCK=64)
""",
        "total = tl.minimum(total, 65504.0)",
        ("kernel", "kernel"),
    ),
    Program(
        "a product of matrices in a kernel that float32 does not hold",
        "not finite",
        """
kernel = triton_kernel('''
def kernel(x, out, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    values = tl.load(x + offsets)
    MEND
    tl.store(out + offsets, tl.dot(values, values))
''')
x, out = torch.ones(32, 32, device="mtia"), torch.zeros(32, 32, device="mtia")
x[3, 5] = x[5, 7] = 1e30
kernel[(1,)](x, out, BLOCK=32)
""",
        "values = tl.minimum(values, 1e10)",
        ("kernel", "kernel"),
    ),
    Program(
        "products of many numbers that add up to more than float32 holds",
        "not finite",
        """
kernel = triton_kernel('''
def kernel(x, out, BLOCK: tl.constexpr):
    lanes = tl.arange(0, BLOCK)
    offsets = lanes[:, None] * BLOCK + lanes[None, :]
    total = tl.zeros((BLOCK, BLOCK), tl.float32)
    for _ in range(8):
        values = tl.load(x + offsets)
        MEND
        total = tl.dot(values, values, total)
    tl.store(out + lanes, tl.sum(total, 1))
''')
x, out = torch.full((16, 16), 2e18, device="mtia"), torch.zeros(16, device="mtia")
kernel[(1,)](x, out, BLOCK=16)
""",
        "values /= 1e10",
        ("kernel", "kernel"),
    ),
    Program(
        "a sum over lanes that overflows",
        "not finite",
        """
kernel = triton_kernel('''
def kernel(x, out, BLOCK: tl.constexpr):
    values = tl.load(x + tl.arange(0, BLOCK))
    MEND
    tl.store(out, tl.sum(values))
''')
x, out = torch.ones(256, device="mtia"), torch.zeros(1, device="mtia")
x[37] = x[69] = 3e38
kernel[(1,)](x, out, BLOCK=256)
""",
        "values = tl.minimum(values, 1e30)",
        ("kernel", "kernel"),
    ),
    Program(
        "a cumulative sum that overflows",
        "not finite",
        """
kernel = triton_kernel('''
def kernel(x, out, BLOCK: tl.constexpr):
    values = tl.load(x + tl.arange(0, BLOCK))
    MEND
    tl.store(out + tl.arange(0, BLOCK), tl.cumsum(values, 0))
''')
x, out = torch.full((64,), 1e37, device="mtia"), torch.zeros(64, device="mtia")
kernel[(1,)](x, out, BLOCK=64)
""",
        "values = tl.minimum(values, 1e36)",
        ("kernel", "kernel"),
    ),
    Program(
        "a product of all lanes that overflows",
        "not finite",
        """
kernel = triton_kernel('''
def multiply(a, b):
    return a * b

@triton.jit
def kernel(x, out, BLOCK: tl.constexpr):
    values = tl.load(x + tl.arange(0, BLOCK))
    MEND
    tl.store(out + tl.arange(0, BLOCK), values - tl.reduce(values, 0, multiply))
''')
x, out = torch.full((64,), 10.0, device="mtia"), torch.zeros(64, device="mtia")
kernel[(1,)](x, out, BLOCK=64)
""",
        "values = tl.minimum(values, 2.0)",
        ("kernel", "kernel"),
    ),
    Program(
        "a recurrence that grows beyond all bounds",
        "not finite",
        """
kernel = triton_kernel('''
def follow(a, b, c, d):
    return a * c, c * b + d

@triton.jit
def kernel(x, out, BLOCK: tl.constexpr):
    values = tl.load(x + tl.arange(0, BLOCK))
    MEND
    _, last = tl.associative_scan((values, values), 0, follow)
    tl.store(out + tl.arange(0, BLOCK), last)
''')
x, out = torch.full((64,), 10.0, device="mtia"), torch.zeros(64, device="mtia")
kernel[(1,)](x, out, BLOCK=64)
""",
        "values = tl.minimum(values, 0.5)",
        ("kernel", "kernel"),
    ),
    Program(
        "a sum by atomic operations that overflows",
        "not finite",
        """
kernel = triton_kernel('''
def kernel(x, out, BLOCK: tl.constexpr):
    values = tl.load(x + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK))
    MEND
    tl.atomic_add(out + tl.arange(0, BLOCK), values)
''')
x, out = torch.full((256,), 1e38, device="mtia"), torch.zeros(64, device="mtia")
kernel[(4,)](x, out, BLOCK=64)
""",
        "values = tl.minimum(values, 8e37)",
        ("kernel", "kernel"),
    ),
    Program(
        "a kernel adds the logarithm of 0 by an atomic operation",
        "not finite",
        """
kernel = triton_kernel('''
def kernel(x, out):
    value = tl.load(x + tl.program_id(0))
    MEND
    tl.atomic_add(out, tl.log(value))
''')
x, out = torch.zeros(4, device="mtia"), torch.zeros(1, device="mtia")
kernel[(4,)](x, out)
""",
        "value += 1",
        ("kernel", "kernel"),
    ),
    Program(
        "a kernel stores in eight bits what these do not hold",
        "not finite",
        """
kernel = triton_kernel('''
def kernel(x, out, BLOCK: tl.constexpr):
    values = tl.load(x + tl.arange(0, BLOCK))
    MEND
    tl.store(out + tl.arange(0, BLOCK), values.to(tl.float8e5))
''')
x, out = torch.full((64,), 1e6, device="mtia"), torch.zeros(64, device="mtia", dtype=torch.float8_e5m2)
kernel[(1,)](x, out, BLOCK=64, saturate_fp8=False)
""",
        "values = tl.minimum(values, 57344.0)",
        ("kernel", "kernel"),
    ),
]
