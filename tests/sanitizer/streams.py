"""Work of two streams in no order, and memory that is given away while another stream works on it."""

from __future__ import annotations

from sanitizer.corpus import Program

RACES = [
    Program(
        "a side stream reads what the main stream writes",
        "race",
        """
x = torch.randn(1000, device="mtia")
MEND
with side:
    y = x.exp()
main.wait_stream(side)
""",
        "side.wait_stream(main)",
        ("aten::exp", "aten::normal_"),
    ),
    Program(
        "the main stream reads the result of a side stream",
        "race",
        """
x = torch.ones(1000, device="mtia")
side.wait_stream(main)
with side:
    y = x.exp()
MEND
z = y + 1
main.wait_stream(side)
""",
        "main.wait_stream(side)",
        ("aten::add", "aten::exp"),
    ),
    Program(
        "an operand is changed in place while a side stream reads it",
        "race",
        """
x = torch.ones(1000, device="mtia")
side.wait_stream(main)
with side:
    y = x.exp()
MEND
x.mul_(2)
main.wait_stream(side)
""",
        "main.wait_stream(side)",
        ("aten::mul", "aten::exp"),
    ),
    Program(
        "an event is recorded before the work that it should stand for",
        "race",
        """
event = torch.Event("mtia")
x = torch.zeros(1000, device="mtia")
event.record(main)
x.add_(1)
MEND
side.wait_event(event)
with side:
    y = x.exp()
main.wait_stream(side)
""",
        "event.record(main)",
        ("aten::exp", "aten::add"),
    ),
    Program(
        "an event is waited for by another stream than the one that reads",
        "race",
        """
event = torch.Event("mtia")
x = torch.randn(1000, device="mtia")
event.record(main)
third.wait_event(event)
MEND
with side:
    y = x.exp()
main.wait_stream(side)
""",
        "side.wait_event(event)",
        ("aten::exp", "aten::normal_"),
    ),
    Program(
        "a chain of three streams lacks a link",
        "race",
        """
x = torch.randn(1000, device="mtia")
side.wait_stream(main)
with side:
    y = x * 2
MEND
with third:
    z = y * 2
main.wait_stream(side)
main.wait_stream(third)
""",
        "third.wait_stream(side)",
        ("aten::mul", "aten::mul"),
    ),
    Program(
        "rows of one matrix, of which two streams write the same one",
        "race",
        """
x = torch.zeros(16, 64, device="mtia")
side.wait_stream(main)
x[:8].fill_(1)
first = 7
MEND
with side:
    x[first:].fill_(2)
main.wait_stream(side)
""",
        "first = 8",
        ("aten::fill_", "aten::fill_"),
    ),
    Program(
        "columns of one matrix, of which two streams write the same one",
        "race",
        """
x = torch.zeros(64, 16, device="mtia")
side.wait_stream(main)
x[:, :8].fill_(1)
first = 7
MEND
with side:
    x[:, first:].fill_(2)
main.wait_stream(side)
""",
        "first = 8",
        ("aten::fill_", "aten::fill_"),
    ),
    Program(
        "a view of a tensor is read on a side stream",
        "race",
        """
x = torch.zeros(8, 8, device="mtia")
diagonal = x.t()[2:].diagonal()
side.wait_stream(main)
x.add_(1)
MEND
with side:
    y = diagonal.exp()
main.wait_stream(side)
""",
        "side.wait_stream(main)",
        ("aten::exp", "aten::add"),
    ),
    Program(
        "two side streams update one buffer",
        "race",
        """
total = torch.zeros(1000, device="mtia")
side.wait_stream(main)
third.wait_stream(main)
with side:
    total.add_(1)
MEND
with third:
    total.add_(2)
main.wait_stream(side)
main.wait_stream(third)
""",
        "third.wait_stream(side)",
        ("aten::add", "aten::add"),
    ),
    Program(
        "gradients are summed on a side stream before backward has come to them",
        "race",
        """
weight = torch.ones(100, device="mtia", requires_grad=True)
(weight * weight).sum().backward()
MEND
with side:
    weight.grad.mul_(0.5)
main.wait_stream(side)
""",
        "side.wait_stream(main)",
        ("aten::mul", "aten::add"),
    ),
    Program(
        "an optimizer steps while a side stream evaluates the model",
        "race",
        """
model = torch.nn.Linear(16, 16, device="mtia")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.ones(4, 16, device="mtia")).sum().backward()
x = torch.ones(4, 16, device="mtia")
side.wait_stream(main)
with side, torch.no_grad():
    y = model(x)
MEND
optimizer.step()
main.wait_stream(side)
""",
        "main.wait_stream(side)",
        ("aten::_foreach_add_", "aten::addmm"),
    ),
    Program(
        "lists of tensors are changed while a side stream adds them",
        "race",
        """
tensors = [torch.ones(10, device="mtia") for _ in range(3)]
side.wait_stream(main)
with side:
    sums = torch._foreach_add(tensors, 1)
MEND
torch._foreach_mul_(tensors, 2)
main.wait_stream(side)
""",
        "main.wait_stream(side)",
        ("aten::_foreach_mul_", "aten::add"),
    ),
    Program(
        "a copy between devices' streams overtakes the writer",
        "race",
        """
x = torch.randn(1000, device="mtia")
y = torch.empty(1000, device="mtia")
side.wait_stream(main)
x.neg_()
MEND
with side:
    y.copy_(x)
main.wait_stream(side)
""",
        "side.wait_stream(main)",
        ("copy", "aten::neg"),
    ),
    Program(
        "an index is written while a side stream gathers by it",
        "race",
        """
x, index = torch.ones(100, device="mtia"), torch.zeros(10, dtype=torch.long, device="mtia")
side.wait_stream(main)
with side:
    y = x.index_select(0, index)
MEND
index.fill_(3)
main.wait_stream(side)
""",
        "main.wait_stream(side)",
        ("aten::fill_", "aten::index_select"),
    ),
    Program(
        "a fall back reads what a side stream writes",
        "race",
        """
x = torch.ones(10, device="mtia")
side.wait_stream(main)
with side:
    x.add_(1)
MEND
y = torch.special.bessel_j0(x)
main.wait_stream(side)
""",
        "main.wait_stream(side)",
        ("aten::special_bessel_j0", "aten::add"),
    ),
    Program(
        "a graph is replayed in a stream that its input is not written in",
        "race",
        """
x = torch.zeros(100, device="mtia")
graph = torch.mtia.MTIAGraph()
with torch.mtia.graph(graph):
    y = x * 2
torch.mtia.synchronize()
x.fill_(3)
MEND
with side:
    graph.replay()
main.wait_stream(side)
""",
        "side.wait_stream(main)",
        ("graph", "aten::fill_"),
    ),
    Program(
        "the result of a graph is read in another stream",
        "race",
        """
x = torch.zeros(100, device="mtia")
graph = torch.mtia.MTIAGraph()
with torch.mtia.graph(graph):
    y = x * 2
side.wait_stream(main)
with side:
    graph.replay()
MEND
z = y + 1
main.wait_stream(side)
""",
        "main.wait_stream(side)",
        ("aten::add", "graph"),
    ),
    Program(
        "threads share a tensor and no order",
        "race",
        """
import threading
x = torch.zeros(100, device="mtia")
side.wait_stream(main)
def work():
    with side:
        x.add_(1)
thread = threading.Thread(target=work)
thread.start()
thread.join()
MEND
x.mul_(2)
main.wait_stream(side)
""",
        "main.wait_stream(side)",
        ("aten::mul", "aten::add"),
    ),
]

BETWEEN_DEVICES = [
    Program(
        "another device reads what is being written",
        "race",
        """
x = torch.zeros(100, device="mtia:0")
other = torch.Stream("mtia:0")
other.wait_stream(main)
with other:
    x.add_(1)
MEND
y = x.to("mtia:1")
main.wait_stream(other)
""",
        "main.wait_stream(other)",
        ("copy", "aten::add"),
    ),
]

FREED = [
    Program(
        "a tensor is freed while a side stream reads it",
        "freed too early",
        """
x = torch.ones(1 << 20, device="mtia")
side.wait_stream(main)
with side:
    y = x.exp()
MEND
del x
z = torch.zeros(1 << 20, device="mtia")
main.wait_stream(side)
""",
        "x.record_stream(side)",
        ("fill", "aten::exp"),
    ),
    Program(
        "a temporary of a function is used by a stream that outlives it",
        "freed too early",
        """
def scaled(x):
    doubled = x * 2
    side.wait_stream(main)
    with side:
        result = doubled.exp()
    MEND
    return result
x = torch.ones(1 << 20, device="mtia")
y = scaled(x)
z = x + 1
main.wait_stream(side)
""",
        "main.wait_stream(side)",
        ("aten::add", "aten::exp"),
    ),
    Program(
        "a tensor of a side stream is freed while the main stream reads it",
        "freed too early",
        """
with side:
    x = torch.ones(1 << 20, device="mtia")
main.wait_stream(side)
y = x.exp()
MEND
del x
with side:
    z = torch.zeros(1 << 20, device="mtia")
main.wait_stream(side)
""",
        "x.record_stream(main)",
        ("fill", "aten::exp"),
    ),
    Program(
        "a batch is prefetched into memory that the step still reads",
        "freed too early",
        """
with side:
    batch = torch.ones(1 << 20, device="mtia")
for _ in range(2):
    main.wait_stream(side)
    MEND
    loss = batch.exp()
    del batch
    with side:
        batch = torch.full((1 << 20,), 2.0, device="mtia")
main.wait_stream(side)
""",
        "batch.record_stream(main)",
        ("aten::fill_", "aten::exp"),
    ),
    Program(
        "many tensors that a side stream reads are freed, and their memory is used again",
        "freed too early",
        """
tensors = [torch.ones(1 << 18, device="mtia") for _ in range(20)]
side.wait_stream(main)
for tensor in tensors:
    with side:
        y = tensor.exp()
    MEND
del tensor, tensors
for _ in range(30):
    z = torch.zeros(1 << 18, device="mtia")
main.wait_stream(side)
""",
        "tensor.record_stream(side)",
        ("fill", "aten::exp"),
    ),
]

RIGHT = {
    "two streams evaluate one model": """
for dtype in (torch.float32, torch.bfloat16):
    norm, x = torch.nn.BatchNorm1d(3, device="mtia", dtype=dtype).eval(), torch.ones(4, 3, device="mtia", dtype=dtype)
    side.wait_stream(main)
    y = norm(x)
    with side:
        z = norm(x)
    main.wait_stream(side)
""",
}
