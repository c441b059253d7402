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
]
