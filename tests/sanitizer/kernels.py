"""Triton kernels that leave a tensor, whose programs or lanes are in each other's way, or that nothing waits for.

Most are mistakes that people have reported of kernels on GPUs, where they show on some days.
"""

from __future__ import annotations

from sanitizer.corpus import Program

LEAVING = [
    Program(
        "one of two pointers is used as if both tensors were as long",
        "out of bounds",
        """
kernel = triton_kernel('''
def kernel(a, b, n, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    tl.store(tl.where(offsets < 8, a + offsets, b + (offsets.to(tl.int64) << 30)), 1.0, mask=offsets < n)
''')
a, b, n = torch.zeros(8, device="mtia"), torch.zeros(8, device="mtia"), 16
MEND
kernel[(1,)](a, b, n, BLOCK=16)
""",
        "n = 8",
        ("kernel",),
    ),
    Program(
        "a tensor of no elements is stored to",
        "out of bounds",
        """
kernel = triton_kernel('''
def kernel(out):
    tl.store(out, 1.0)
''')
size = 0
MEND
out = torch.zeros(size, device="mtia")
kernel[(1,)](out)
""",
        "size = 1",
        ("kernel",),
    ),
    Program(
        "no mask at the tail of what is read",
        "out of bounds",
        """
kernel = triton_kernel('''
def kernel(x, out, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets >= 0
    MEND
    values = tl.load(x + offsets, mask=mask)
    tl.store(out + offsets, values, mask=offsets < n)
''')
x, out = torch.ones(1000, device="mtia"), torch.zeros(1000, device="mtia")
kernel[(4,)](x, out, 1000, BLOCK=256)
""",
        "mask = offsets < n",
        ("kernel",),
    ),
    Program(
        "no mask at the tail of what is written",
        "out of bounds",
        """
kernel = triton_kernel('''
def kernel(out, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets >= 0
    MEND
    tl.store(out + offsets, offsets, mask=mask)
''')
out = torch.zeros(1000, dtype=torch.int32, device="mtia")
neighbour = torch.zeros(1000, dtype=torch.int32, device="mtia")
kernel[(8,)](out, 1000, BLOCK=256)
""",
        "mask = offsets < n",
        ("kernel",),
    ),
    Program(
        "a mask with <= in place of <",
        "out of bounds",
        """
kernel = triton_kernel('''
def kernel(x, out, n, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    mask = offsets <= n
    MEND
    tl.store(out, tl.sum(tl.load(x + offsets, mask=mask, other=0.0)))
''')
x, out = torch.ones(100, device="mtia"), torch.zeros(1, device="mtia")
kernel[(1,)](x, out, 100, BLOCK=128)
""",
        "mask = offsets < n",
        ("kernel",),
    ),
    Program(
        "the element before the first",
        "out of bounds",
        """
kernel = triton_kernel('''
def kernel(x, out, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    mask = offsets >= 0
    MEND
    before = tl.load(x + offsets - 1, mask=mask, other=0.0)
    tl.store(out + offsets, before)
''')
x, out = torch.ones(64, device="mtia"), torch.zeros(64, device="mtia")
kernel[(1,)](x, out, BLOCK=64)
""",
        "mask = offsets > 0",
        ("kernel",),
    ),
    Program(
        "rows at the stride of another tensor",
        "out of bounds",
        """
kernel = triton_kernel('''
def kernel(x, out, stride, COLUMNS: tl.constexpr):
    row, columns = tl.program_id(0), tl.arange(0, COLUMNS)
    tl.store(out + row, tl.sum(tl.load(x + row * stride + columns)))
''')
padded = torch.ones(16, 48, device="mtia")
x, out = padded[:, :32].contiguous(), torch.zeros(16, device="mtia")
stride = padded.stride(0)
MEND
kernel[(16,)](x, out, stride, COLUMNS=32)
""",
        "stride = x.stride(0)",
        ("kernel",),
    ),
    Program(
        "a pointer goes one block too far in a loop",
        "out of bounds",
        """
kernel = triton_kernel('''
def kernel(x, out, n, BLOCK: tl.constexpr):
    pointers = x + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    end = n + 1
    MEND
    for _ in range(0, end, BLOCK):
        total += tl.load(pointers)
        pointers += BLOCK
    tl.store(out, tl.sum(total))
''')
x, out = torch.ones(256, device="mtia"), torch.zeros(1, device="mtia")
kernel[(1,)](x, out, 256, BLOCK=64)
""",
        "end = n",
        ("kernel",),
    ),
    Program(
        "an index that the table does not have",
        "out of bounds",
        """
kernel = triton_kernel('''
def kernel(table, index, out, BLOCK: tl.constexpr):
    lanes = tl.arange(0, BLOCK)
    tl.store(out + lanes, tl.load(table + tl.load(index + lanes)))
''')
table, out = torch.ones(100, device="mtia"), torch.zeros(16, device="mtia")
index = torch.arange(16, device="mtia") * 7
MEND
kernel[(1,)](table, index, out, BLOCK=16)
""",
        "index = index.clamp(max=99)",
        ("kernel",),
    ),
]

PROGRAMS_RACE = [
    Program(
        "one program clears a sum to which all add",
        "race between programs",
        """
kernel = triton_kernel('''
def kernel(x, total, clear: tl.constexpr):
    if clear and tl.program_id(0) == 0:
        tl.store(total, 0.0)
    tl.atomic_add(total, tl.load(x + tl.program_id(0)))
''')
x, total, clear = torch.ones(4, device="mtia"), torch.zeros(1, device="mtia"), True
MEND
kernel[(4,)](x, total, clear)
""",
        "clear = False",
        ("kernel", "kernel"),
    ),
    Program(
        "an atomic operation within one program is used between several",
        "race between programs",
        """
kernel = triton_kernel('''
def kernel(total, scope: tl.constexpr):
    tl.atomic_add(total, 1.0, scope=scope)
''')
total, scope = torch.zeros(1, device="mtia"), "cta"
MEND
kernel[(4,)](total, scope)
""",
        'scope = "gpu"',
        ("kernel", "kernel"),
    ),
    Program(
        "programs overlap by an element",
        "race between programs",
        """
kernel = triton_kernel('''
def kernel(out, BLOCK: tl.constexpr):
    start = tl.program_id(0) * (BLOCK - 1)
    MEND
    tl.store(out + start + tl.arange(0, BLOCK), 1.0)
''')
out = torch.zeros(256, device="mtia")
kernel[(4,)](out, BLOCK=64)
""",
        "start = tl.program_id(0) * BLOCK",
        ("kernel", "kernel"),
    ),
    Program(
        "offsets that wrap around in place of a mask",
        "race between programs",
        """
kernel = triton_kernel('''
def kernel(x, out, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    wrapped, mask = offsets % n, offsets >= 0
    MEND
    tl.store(out + wrapped, tl.load(x + wrapped) * 2, mask=mask)
''')
x, out = torch.ones(100, device="mtia"), torch.zeros(100, device="mtia")
kernel[(2,)](x, out, 100, BLOCK=64)
""",
        "mask = offsets < n",
        ("kernel", "kernel"),
    ),
    Program(
        "parts of a sum along K are added without atomics",
        "race between programs",
        """
kernel = triton_kernel('''
def kernel(a, out, K, BLOCK: tl.constexpr, ATOMIC: tl.constexpr):
    lanes = tl.arange(0, BLOCK)
    part = tl.load(a + tl.program_id(0) * BLOCK + lanes)
    if ATOMIC:
        tl.atomic_add(out + lanes, part)
    else:
        tl.store(out + lanes, tl.load(out + lanes) + part)
''')
a, out, atomic = torch.ones(256, device="mtia"), torch.zeros(64, device="mtia"), False
MEND
kernel[(4,)](a, out, 256, BLOCK=64, ATOMIC=atomic)
""",
        "atomic = True",
        ("kernel", "kernel"),
    ),
    Program(
        "a histogram that loads, adds and stores",
        "race between programs",
        """
kernel = triton_kernel('''
def kernel(x, bins, ATOMIC: tl.constexpr):
    bin = bins + tl.load(x + tl.program_id(0))
    if ATOMIC:
        tl.atomic_add(bin, 1)
    else:
        tl.store(bin, tl.load(bin) + 1)
''')
x = torch.arange(32, device="mtia") % 5
bins, atomic = torch.zeros(5, dtype=torch.int32, device="mtia"), False
MEND
kernel[(32,)](x, bins, ATOMIC=atomic)
""",
        "atomic = True",
        ("kernel", "kernel"),
    ),
    Program(
        "a stencil in place",
        "race between programs",
        """
kernel = triton_kernel('''
def kernel(x, out, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    left = tl.load(x + offsets - 1, mask=offsets > 0, other=0.0)
    tl.store(out + offsets, left + tl.load(x + offsets))
''')
x = torch.ones(256, device="mtia")
out = x
MEND
kernel[(4,)](x, out, 256, BLOCK=64)
""",
        "out = torch.empty_like(x)",
        ("kernel", "kernel"),
    ),
    Program(
        "the last program reads what the others have stored",
        "race between programs",
        """
kernel = triton_kernel('''
def kernel(x, parts, count, out, BLOCK: tl.constexpr, PROGRAMS: tl.constexpr, TICKETS: tl.constexpr):
    program = tl.program_id(0)
    tl.store(parts + program, tl.sum(tl.load(x + program * BLOCK + tl.arange(0, BLOCK))))
    place = program
    if TICKETS:
        place = tl.atomic_add(count, 1)
    if place == PROGRAMS - 1:
        tl.store(out, tl.sum(tl.load(parts + tl.arange(0, PROGRAMS))))
''')
x, parts, out = (torch.zeros(size, device="mtia") for size in (256, 4, 1))
count, tickets = torch.zeros(1, dtype=torch.int32, device="mtia"), False
MEND
kernel[(4,)](x, parts, count, out, BLOCK=64, PROGRAMS=4, TICKETS=tickets)
""",
        "tickets = True",
        ("kernel", "kernel"),
    ),
    Program(
        "tickets that order nothing",
        "race between programs",
        """
kernel = triton_kernel('''
def kernel(x, parts, count, out, BLOCK: tl.constexpr, PROGRAMS: tl.constexpr, ORDER: tl.constexpr):
    program = tl.program_id(0)
    tl.store(parts + program, tl.sum(tl.load(x + program * BLOCK + tl.arange(0, BLOCK))))
    if tl.atomic_add(count, 1, sem=ORDER) == PROGRAMS - 1:
        tl.store(out, tl.sum(tl.load(parts + tl.arange(0, PROGRAMS))))
''')
x, parts, out = (torch.zeros(size, device="mtia") for size in (256, 4, 1))
count, order = torch.zeros(1, dtype=torch.int32, device="mtia"), "relaxed"
MEND
kernel[(4,)](x, parts, count, out, BLOCK=64, PROGRAMS=4, ORDER=order)
""",
        'order = "acq_rel"',
        ("kernel", "kernel"),
    ),
    Program(
        "a lock that is released by a plain store",
        "race between programs",
        """
kernel = triton_kernel('''
def kernel(lock, total, PLAIN: tl.constexpr):
    while tl.atomic_cas(lock, 0, 1) == 1:
        pass
    tl.store(total, tl.load(total) + 1.0)
    if PLAIN:
        tl.store(lock, 0)
    else:
        tl.atomic_xchg(lock, 0)
''')
lock, total = torch.zeros(1, dtype=torch.int32, device="mtia"), torch.zeros(1, device="mtia")
plain = True
MEND
kernel[(8,)](lock, total, PLAIN=plain)
""",
        "plain = False",
        ("kernel", "kernel"),
    ),
    Program(
        "a chain of sums that hands on through plain stores",
        "race between programs",
        """
kernel = triton_kernel('''
def kernel(x, sums, flags, BLOCK: tl.constexpr, ORDERED: tl.constexpr):
    program = tl.program_id(0)
    total = tl.sum(tl.load(x + program * BLOCK + tl.arange(0, BLOCK)))
    if program > 0:
        if ORDERED:
            while tl.atomic_add(flags + program - 1, 0) == 0:
                pass
        total += tl.load(sums + program - 1)
    tl.store(sums + program, total)
    if ORDERED:
        tl.debug_barrier()
        tl.atomic_xchg(flags + program, 1)
''')
x, sums = torch.ones(256, device="mtia"), torch.zeros(4, device="mtia")
flags, ordered = torch.zeros(4, dtype=torch.int32, device="mtia"), False
MEND
kernel[(4,)](x, sums, flags, BLOCK=64, ORDERED=ordered)
""",
        "ordered = True",
        ("kernel", "kernel"),
    ),
]

LANES = [
    Program(
        "a scatter to indices that repeat",
        "several values",
        """
kernel = triton_kernel('''
def kernel(index, x, out, BLOCK: tl.constexpr):
    lanes = tl.arange(0, BLOCK)
    tl.store(out + tl.load(index + lanes), tl.load(x + lanes))
''')
x, out = torch.arange(64., device="mtia"), torch.zeros(64, device="mtia")
index = torch.arange(64, device="mtia") // 2
MEND
kernel[(1,)](index, x, out, BLOCK=64)
""",
        "index = torch.arange(63, -1, -1, device='mtia')",
        ("kernel",),
    ),
    Program(
        "every lane stores its own sum",
        "several values",
        """
kernel = triton_kernel('''
def kernel(x, out, COLUMNS: tl.constexpr):
    row, columns = tl.program_id(0), tl.arange(0, COLUMNS)
    result = tl.load(x + row * COLUMNS + columns)
    MEND
    tl.store(out + row + tl.zeros([COLUMNS], tl.int32), result)
''')
x, out = torch.arange(256., device="mtia"), torch.zeros(4, device="mtia")
kernel[(4,)](x, out, COLUMNS=64)
""",
        "result = tl.zeros([COLUMNS], tl.float32) + tl.sum(result)",
        ("kernel",),
    ),
    Program(
        "rows that are closer than they are long",
        "several values",
        """
kernel = triton_kernel('''
def kernel(out, stride, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    rows, columns = tl.arange(0, ROWS)[:, None], tl.arange(0, COLUMNS)[None, :]
    tl.store(out + rows * stride + columns, rows * COLUMNS + columns)
''')
out, stride = torch.zeros(8, 32, dtype=torch.int32, device="mtia"), 16
MEND
kernel[(1,)](out, stride, ROWS=8, COLUMNS=32)
""",
        "stride = out.stride(0)",
        ("kernel",),
    ),
]

ADD = """
kernel = triton_kernel('''
def kernel(x, y, out, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(out + offsets, tl.load(x + offsets, mask=mask) + tl.load(y + offsets, mask=mask), mask=mask)
''')
"""

AROUND = [
    Program(
        "a kernel on a side stream waits for nobody",
        "race",
        ADD
        + """
x, y, out = (torch.zeros(1000, device="mtia") for _ in range(3))
side.wait_stream(main)
x.normal_()
MEND
with side:
    kernel[(4,)](x, y, out, 1000, BLOCK=256)
main.wait_stream(side)
""",
        "side.wait_stream(main)",
        ("kernel", "aten::normal_"),
    ),
    Program(
        "nobody waits for a kernel on a side stream",
        "race",
        ADD
        + """
x, y, out = (torch.zeros(1000, device="mtia") for _ in range(3))
side.wait_stream(main)
with side:
    kernel[(4,)](x, y, out, 1000, BLOCK=256)
MEND
total = out.sum()
""",
        "main.wait_stream(side)",
        ("aten::sum", "kernel"),
    ),
    Program(
        "two launches reduce one after the other, in two streams",
        "race",
        """
kernel = triton_kernel('''
def kernel(x, parts, BLOCK: tl.constexpr):
    program = tl.program_id(0)
    tl.store(parts + program, tl.sum(tl.load(x + program * BLOCK + tl.arange(0, BLOCK))))
''')
x, parts, out = (torch.zeros(size, device="mtia") for size in (256, 4, 1))
side.wait_stream(main)
kernel[(4,)](x, parts, BLOCK=64)
MEND
with side:
    kernel[(1,)](parts, out, BLOCK=4)
main.wait_stream(side)
""",
        "side.wait_stream(main)",
        ("kernel", "kernel"),
    ),
    Program(
        "a tensor is freed under a kernel of a side stream",
        "freed too early",
        ADD
        + """
x, y, out = (torch.zeros(1 << 18, device="mtia") for _ in range(3))
side.wait_stream(main)
with side:
    kernel[(1 << 10,)](x, y, out, 1 << 18, BLOCK=256)
MEND
del x
z = torch.zeros(1 << 18, device="mtia")
main.wait_stream(side)
""",
        "x.record_stream(side)",
        ("fill", "kernel"),
    ),
    Program(
        "a grid that is rounded down",
        "uninitialized",
        ADD
        + """
x, y = torch.zeros(1000, device="mtia"), torch.zeros(1000, device="mtia")
out, blocks = torch.empty_like(x), 1000 // 256
MEND
kernel[(blocks,)](x, y, out, 1000, BLOCK=256)
total = out.sum()
""",
        "blocks = triton.cdiv(1000, 256)",
        ("aten::sum",),
    ),
    Program(
        "a kernel adds to what torch.empty has given",
        "uninitialized",
        ADD
        + """
x, total = torch.zeros(1000, device="mtia"), torch.empty(1000, device="mtia")
MEND
kernel[(4,)](x, total, total, 1000, BLOCK=256)
""",
        "total.zero_()",
        ("kernel",),
    ),
    Program(
        "a kernel writes every second element",
        "uninitialized",
        """
kernel = triton_kernel('''
def kernel(out, STRIDE: tl.constexpr, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + offsets * STRIDE, offsets)
''')
out = torch.empty(256, device="mtia", dtype=torch.int32)
MEND
kernel[(1,)](out, STRIDE=2, BLOCK=128)
total = out.sum()
""",
        "out.zero_()",
        ("aten::sum",),
    ),
    Program(
        "a kernel computes with what it has chosen lanes of before",
        "uninitialized",
        """
kernel = triton_kernel('''
def kernel(x, first, second):
    lanes = tl.arange(0, 16)
    tl.store(first + lanes, tl.where(lanes < 8, tl.load(x + lanes), 0))
    tl.debug_barrier()
    tl.store(second + lanes, tl.load(x + lanes, volatile=False) + 1)
''')
x, first, second = (torch.empty(16, device="mtia") for _ in range(3))
MEND
kernel[(1,)](x, first, second)
""",
        "x.fill_(1)",
        ("kernel",),
    ),
    Program(
        "a kernel reads one element that nothing has written",
        "uninitialized",
        ADD
        + """
x, y, out = (torch.empty(1000, device="mtia") for _ in range(3))
x[:999], y[:] = 1, 1
size = 1000
MEND
kernel[(4,)](x, y, out, size, BLOCK=256)
""",
        "size = 999",
        ("kernel",),
    ),
]

PROGRAMS = [*LEAVING, *PROGRAMS_RACE, *LANES, *AROUND]
