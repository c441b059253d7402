"""Graphs that outlive what they read, and memory that is used through its address alone."""

from __future__ import annotations

from sanitizer.corpus import Program

FREED = [
    Program(
        "the input of a graph is freed before it is replayed",
        "use after free",
        """
x = torch.ones(1000, device="mtia")
graph = torch.mtia.MTIAGraph()
with torch.mtia.graph(graph):
    y = x * 2
kept = None
MEND
del x
graph.replay()
""",
        "kept = x",
        ("graph",),
    ),
    Program(
        "the input of a graph is freed, and its memory is another tensor's",
        "use after free",
        """
x = torch.ones(1 << 20, device="mtia")
graph = torch.mtia.MTIAGraph()
with torch.mtia.graph(graph):
    y = x * 2
kept = None
MEND
del x
other = torch.zeros(1 << 20, device="mtia")
graph.replay()
""",
        "kept = x",
        ("graph",),
    ),
    Program(
        "weights are replaced and not changed, and a graph goes on with the old ones",
        "use after free",
        """
weight, x = torch.ones(64, 64, device="mtia"), torch.ones(4, 64, device="mtia")
graph = torch.mtia.MTIAGraph()
with torch.mtia.graph(graph):
    y = x @ weight
averaged, old = weight * 0.5, None
MEND
weight = averaged
graph.replay()
""",
        "old = weight",
        ("graph",),
    ),
    Program(
        "a kernel of a graph reads a tensor that was freed, and whose memory is another one's",
        "use after free",
        """
kernel = triton_kernel('''
def kernel(x, out, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + offsets, tl.load(x + offsets, mask=offsets < n), mask=offsets < n)
''')
x, out = (torch.zeros(1 << 16, device="mtia") for _ in range(2))
graph = torch.mtia.MTIAGraph()
with torch.mtia.graph(graph):
    kernel[(256,)](x, out, 1 << 16, BLOCK=256)
kept = None
MEND
del x
other = torch.zeros(1 << 16, device="mtia")
graph.replay()
""",
        "kept = x",
        ("graph",),
    ),
    Program(
        "an extension keeps an address, and nobody the tensor",
        "use after free",
        """
def as_an_extension_does(tensor):
    storage = torch._C._construct_storage_from_data_pointer(tensor.data_ptr(), tensor.device, tensor.nbytes)
    return torch.empty(0, device="mtia").set_(storage, 0, tensor.shape, tensor.stride())
x = torch.ones(1 << 20, device="mtia")
seen, kept = as_an_extension_does(x), None
MEND
del x
y = seen.sum()
""",
        "kept = x",
        ("aten::sum",),
    ),
]

RACES = [
    Program(
        "a graph is replayed again while a side stream reads its result",
        "race",
        """
x = torch.ones(1000, device="mtia")
graph = torch.mtia.MTIAGraph()
with torch.mtia.graph(graph):
    y = x * 2
graph.replay()
side.wait_stream(main)
with side:
    z = y.exp()
MEND
graph.replay()
main.wait_stream(side)
""",
        "main.wait_stream(side)",
        ("graph", "aten::exp"),
    ),
    Program(
        "the static input of a graph is filled while it is being replayed on a side stream",
        "race",
        """
x, batch = torch.ones(1000, device="mtia"), torch.full((1000,), 2.0, device="mtia")
graph = torch.mtia.MTIAGraph()
with torch.mtia.graph(graph):
    y = x * 2
side.wait_stream(main)
with side:
    graph.replay()
MEND
x.copy_(batch)
main.wait_stream(side)
""",
        "main.wait_stream(side)",
        ("copy", "graph"),
    ),
]
