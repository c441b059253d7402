"""Faults inside of captured graphs, which every replay repeats."""

from __future__ import annotations

from sanitizer.corpus import Program

CAPTURED = [
    Program(
        "a branch of a graph does not wait for what it reads",
        "race",
        """
x = torch.ones(1000, device="mtia")
graph = torch.mtia.MTIAGraph()
with torch.mtia.graph(graph):
    main = torch.mtia.current_stream()
    side.wait_stream(main)
    doubled = x * 2
    MEND
    with side:
        result = doubled.exp()
    main.wait_stream(side)
""",
        "side.wait_stream(main)",
        ("aten::exp", "aten::mul"),
    ),
    Program(
        "two branches of a graph add to one sum",
        "race",
        """
x, total = torch.ones(1000, device="mtia"), torch.zeros(1000, device="mtia")
graph = torch.mtia.MTIAGraph()
with torch.mtia.graph(graph):
    main = torch.mtia.current_stream()
    side.wait_stream(main)
    third.wait_stream(main)
    with side:
        total.add_(x)
    MEND
    with third:
        total.add_(x)
    main.wait_stream(side)
    main.wait_stream(third)
""",
        "third.wait_stream(side)",
        ("aten::add", "aten::add"),
    ),
    Program(
        "a graph goes on while a branch of it still reads",
        "race",
        """
x = torch.ones(1000, device="mtia")
graph = torch.mtia.MTIAGraph()
with torch.mtia.graph(graph):
    main = torch.mtia.current_stream()
    side.wait_stream(main)
    with side:
        result = x.exp()
    MEND
    x.zero_()
    main.wait_stream(side)
""",
        "main.wait_stream(side)",
        ("fill", "aten::exp"),
    ),
    Program(
        "a temporary of a graph is freed while another branch reads it",
        "freed too early",
        """
x = torch.ones(1000, device="mtia")
graph = torch.mtia.MTIAGraph()
with torch.mtia.graph(graph):
    main = torch.mtia.current_stream()
    doubled = x * 2
    side.wait_stream(main)
    with side:
        result = doubled.exp()
    MEND
    del doubled
    again = x + 1
    main.wait_stream(side)
""",
        "doubled.record_stream(side)",
        ("aten::add", "aten::exp"),
    ),
    Program(
        "an event of a graph is recorded before what is to be waited for",
        "race",
        """
x = torch.ones(1000, device="mtia")
graph = torch.mtia.MTIAGraph()
with torch.mtia.graph(graph):
    main = torch.mtia.current_stream()
    is_done = main.record_event()
    doubled = x * 2
    MEND
    side.wait_event(is_done)
    with side:
        result = doubled.exp()
    main.wait_stream(side)
""",
        "is_done = main.record_event()",
        ("aten::exp", "aten::mul"),
    ),
    Program(
        "a graph reads a buffer that it has not filled",
        "uninitialized",
        """
x = torch.ones(1000, device="mtia")
graph = torch.mtia.MTIAGraph()
with torch.mtia.graph(graph):
    total = torch.empty_like(x)
    MEND
    total += x
""",
        "total.zero_()",
        ("aten::add",),
    ),
    Program(
        "a graph adds to rows of memory of its own that nobody has filled",
        "uninitialized",
        """
x, index = torch.ones(10, 3, device="mtia"), torch.arange(10, device="mtia") % 4
graph = torch.mtia.MTIAGraph()
with torch.mtia.graph(graph):
    sums = torch.empty(4, 3, device="mtia")
    MEND
    sums.index_put_((index,), x, accumulate=True)
""",
        "sums.zero_()",
        ("aten::_index_put_impl_",),
    ),
    Program(
        "a graph changes what nobody has filled before it is replayed",
        "uninitialized",
        """
weight, graph = torch.nn.Parameter(torch.ones(10, device="mtia")), torch.mtia.MTIAGraph()
weight.grad = torch.ones_like(weight)
optimizer = torch.optim.AdamW([weight], fused=True, capturable=True)
optimizer.step()
optimizer.state[weight]["exp_avg_sq"] = torch.empty_like(weight)
with torch.mtia.graph(graph):
    optimizer.step()
MEND
graph.replay()
""",
        'optimizer.state[weight]["exp_avg_sq"].zero_()',
        ("graph",),
    ),
]

COPY = """
kernel = triton_kernel('''
def kernel(x, out, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + offsets, tl.load(x + offsets, mask=offsets < n), mask=offsets < n)
''')
x, out = torch.ones(1000, device="mtia"), torch.zeros(1000, device="mtia")
graph = torch.mtia.MTIAGraph()
with torch.mtia.graph(graph):
    main = torch.mtia.current_stream()
"""

# What kernels touch is known behind a replay.
KERNELS = [
    Program(
        "a branch of a graph does not wait for a kernel",
        "race",
        COPY
        + """
    side.wait_stream(main)
    kernel[(4,)](x, out, 1000, BLOCK=256)
    MEND
    with side:
        result = out.exp()
    main.wait_stream(side)
graph.replay()
""",
        "side.wait_stream(main)",
        ("aten::exp", "kernel"),
    ),
    Program(
        "a kernel does not wait for a branch of a graph",
        "race",
        COPY
        + """
    side.wait_stream(main)
    with side:
        result = out.exp()
    MEND
    kernel[(4,)](x, out, 1000, BLOCK=256)
    main.wait_stream(side)
graph.replay()
""",
        "main.wait_stream(side)",
        ("kernel", "aten::exp"),
    ),
    Program(
        "a kernel is launched into two branches of a graph, for one result",
        "race",
        COPY
        + """
    side.wait_stream(main)
    kernel[(4,)](x, out, 1000, BLOCK=256)
    MEND
    with side:
        kernel[(4,)](x, out, 1000, BLOCK=256)
    main.wait_stream(side)
graph.replay()
""",
        "side.wait_stream(main)",
        ("kernel", "kernel"),
    ),
    Program(
        "a kernel of one branch of a graph reads what a kernel of the other has left behind its event",
        "race",
        COPY
        + """
    is_done = main.record_event()
    kernel[(4,)](x, out, 1000, BLOCK=256)
    MEND
    side.wait_event(is_done)
    with side:
        kernel[(4,)](out, torch.zeros_like(x), 1000, BLOCK=256)
    main.wait_stream(side)
graph.replay()
""",
        "is_done = main.record_event()",
        ("kernel", "kernel"),
    ),
    Program(
        "a temporary of a graph is freed while a kernel of another branch reads it",
        "freed too early",
        COPY
        + """
    doubled = x * 2
    side.wait_stream(main)
    with side:
        kernel[(4,)](doubled, out, 1000, BLOCK=256)
    MEND
    del doubled
    again = x + 1
    main.wait_stream(side)
graph.replay()
""",
        "doubled.record_stream(side)",
        ("aten::add", "kernel"),
    ),
    Program(
        "a kernel of a graph reads a buffer that the graph has not filled",
        "uninitialized",
        COPY
        + """
    total = torch.empty_like(x)
    MEND
    kernel[(4,)](total, out, 1000, BLOCK=256)
graph.replay()
""",
        "total.zero_()",
        ("kernel",),
    ),
    Program(
        "a grid in a graph is rounded down",
        "uninitialized",
        COPY
        + """
    copied, blocks = torch.empty_like(x), 1000 // 256
    MEND
    kernel[(blocks,)](x, copied, 1000, BLOCK=256)
    total = copied.sum()
graph.replay()
""",
        "blocks = triton.cdiv(1000, 256)",
        ("aten::sum",),
    ),
    Program(
        "a kernel of a graph writes to a temporary that was freed",
        "use after free",
        COPY
        + """
    temporary = torch.zeros_like(x)
    pointer = temporary.data_ptr(), temporary.device, temporary.nbytes
    storage, kept = torch._C._construct_storage_from_data_pointer(*pointer), None
    seen = torch.empty(0, device="mtia").set_(storage, 0, temporary.shape)
    MEND
    del temporary
    kernel[(4,)](x, seen, 1000, BLOCK=256)
graph.replay()
""",
        "kept = temporary",
        ("kernel",),
    ),
    Program(
        "programs of a kernel of a graph store to the same elements",
        "race between programs",
        COPY.replace("program_id(0) * BLOCK", "program_id(0) * 100")
        + """
    programs = 4
    MEND
    kernel[(programs,)](x, out, 1000, BLOCK=256)
graph.replay()
""",
        "programs = 1",
        ("kernel", "kernel"),
    ),
]
