"""The host reads or changes pinned memory that is still being copied; and functions of the host in streams."""

from __future__ import annotations

from sanitizer.corpus import Program

RACES = [
    Program(
        "a number is asked for before its copy has come",
        "race",
        """
loss = torch.ones((), device="mtia")
host = torch.empty((), pin_memory=True)
host.copy_(loss, non_blocking=True)
MEND
value = host.item()
""",
        "main.synchronize()",
        ("aten::_local_scalar_dense", "copy"),
    ),
    Program(
        "NumPy reads what is being copied",
        "race",
        """
x = torch.ones(1000, device="mtia")
host = torch.empty(1000, pin_memory=True)
host.copy_(x, non_blocking=True)
MEND
total = host.numpy().sum()
""",
        "torch.mtia.synchronize()",
        ("Tensor.numpy()", "copy"),
    ),
    Program(
        "a list is made of what is being copied",
        "race",
        """
tokens = torch.ones(8, dtype=torch.long, device="mtia")
host = torch.empty(8, dtype=torch.long, pin_memory=True)
host.copy_(tokens, non_blocking=True)
MEND
ids = host.tolist()
""",
        "torch.mtia.synchronize()",
        ("Tensor.tolist()", "copy"),
    ),
    Program(
        "the host computes with what is being copied",
        "race",
        """
x = torch.ones(64, 64, device="mtia")
host = torch.empty(64, 64, pin_memory=True)
event = torch.Event("mtia")
host.copy_(x, non_blocking=True)
event.record(main)
MEND
mean = host[:8].mean()
main.synchronize()
""",
        "event.synchronize()",
        ("aten::mean", "copy"),
    ),
    Program(
        "an event is recorded before the copy that it should stand for",
        "race",
        """
x = torch.ones(1000, device="mtia")
host = torch.empty(1000, pin_memory=True)
event = torch.Event("mtia")
event.record(main)
host.copy_(x, non_blocking=True)
MEND
event.synchronize()
maximum = host.max()
main.synchronize()
""",
        "event.record(main)",
        ("aten::max", "copy"),
    ),
    Program(
        "the host waits for another stream than the one that copies",
        "race",
        """
x = torch.ones(1000, device="mtia")
host = torch.empty(1000, pin_memory=True)
side.wait_stream(main)
with side:
    host.copy_(x, non_blocking=True)
main.synchronize()
MEND
y = host + 1
side.synchronize()
""",
        "side.synchronize()",
        ("aten::add", "copy"),
    ),
    Program(
        "a staging buffer is filled again while it is being copied",
        "race",
        """
staging = torch.empty(1000, pin_memory=True)
batches = []
for number in range(3):
    staging.fill_(number)
    batches.append(staging.to("mtia", non_blocking=True))
    MEND
main.synchronize()
""",
        "main.synchronize()",
        ("aten::fill_", "copy"),
    ),
    Program(
        "the next batch is written over the one that a side stream copies",
        "race",
        """
staging, batch = torch.zeros(1000, pin_memory=True), torch.randn(1000)
x = torch.empty(1000, device="mtia")
copied = torch.Event("mtia")
side.wait_stream(main)
with side:
    x.copy_(staging, non_blocking=True)
    copied.record(side)
MEND
staging.copy_(batch)
side.synchronize()
""",
        "copied.synchronize()",
        ("aten::copy_", "copy"),
    ),
    Program(
        "an optimizer on the host updates parameters that are on their way to the device",
        "race",
        """
master = torch.ones(1000, pin_memory=True)
weight = torch.empty(1000, device="mtia")
weight.copy_(master, non_blocking=True)
MEND
master.add_(torch.ones(1000), alpha=-0.1)
main.synchronize()
""",
        "main.synchronize()",
        ("aten::add_", "copy"),
    ),
    Program(
        "gradients are offloaded, and read before they have come",
        "race",
        """
gradients = [torch.ones(100, device="mtia") for _ in range(3)]
host = [torch.empty(100, pin_memory=True) for _ in gradients]
side.wait_stream(main)
with side:
    for to, gradient in zip(host, gradients):
        to.copy_(gradient, non_blocking=True)
MEND
norm = torch.stack(host).norm()
side.synchronize()
""",
        "side.synchronize()",
        ("aten::stack", "copy"),
    ),
    Program(
        "a strided copy is read while it is under way",
        "race",
        """
x = torch.ones(64, 64, device="mtia")
host = torch.empty(64, 64, pin_memory=True)
host.t().copy_(x, non_blocking=True)
MEND
y = host * 2
main.synchronize()
""",
        "main.synchronize()",
        ("aten::mul", "aten::copy_"),
    ),
    Program(
        "two streams copy into one buffer of the host",
        "race",
        """
x = torch.ones(1000, device="mtia")
host = torch.empty(1000, pin_memory=True)
side.wait_stream(main)
host.copy_(x, non_blocking=True)
MEND
with side:
    host.copy_(x, non_blocking=True)
side.synchronize()
main.synchronize()
""",
        "side.wait_stream(main)",
        ("copy", "copy"),
    ),
    Program(
        "a function of the host reads in its stream what another one copies",
        "race",
        """
import torch_mtia
x = torch.ones(1000, device="mtia")
host, totals = torch.empty(1000, pin_memory=True), []
host.copy_(x, non_blocking=True)
MEND
torch_mtia.launch_host_function(side, lambda: totals.append(host.sum()))
side.synchronize()
main.synchronize()
""",
        "side.wait_stream(main)",
        ("aten::sum", "copy"),
    ),
    Program(
        "a function of the host fills what another stream is still copying",
        "race",
        """
import torch_mtia
host, x = torch.zeros(1000, pin_memory=True), torch.empty(1000, device="mtia")
x.copy_(host, non_blocking=True)
MEND
torch_mtia.launch_host_function(side, lambda: host.fill_(1))
side.synchronize()
main.synchronize()
""",
        "side.wait_stream(main)",
        ("aten::fill_", "copy"),
    ),
    Program(
        "a function of the host submits work to a stream before its input is written",
        "race",
        """
import torch_mtia
x = torch.ones(1000, device="mtia")
side.wait_stream(main)
x.mul_(2)
MEND
def submit():
    with third:
        x.add_(1)
torch_mtia.launch_host_function(side, submit)
side.synchronize()
torch.mtia.synchronize()
""",
        "side.wait_stream(main)",
        ("aten::add", "aten::mul"),
    ),
]

# What many programs do, and rightly.
RIGHT = {
    "a list of numbers of the device": """
x = torch.arange(6, device="mtia")
assert x.tolist() == [0, 1, 2, 3, 4, 5]
assert x.view(2, 3).mul_(2).tolist() == [[0, 2, 4], [6, 8, 10]]
""",
    "a prefetcher copies the next batch while the step uses the last one": """
batches = [torch.full((1000,), float(i)).pin_memory() for i in range(4)]
def load(batch):
    with side:
        return batch.to("mtia", non_blocking=True)
following = load(batches[0])
for i in range(4):
    main.wait_stream(side)
    x = following
    x.record_stream(main)
    if i + 1 < 4:
        following = load(batches[i + 1])
    y = x * 2
print(y.sum().item())
""",
    "pinned memory is dropped while it is being copied": """
for i in range(20):
    x = torch.full((1 << 14,), float(i)).pin_memory().to("mtia", non_blocking=True)
    y = x + 1
""",
    "a loader pins batches in a thread": """
from torch.utils.data import DataLoader, TensorDataset
data = TensorDataset(torch.randn(64, 16), torch.arange(64))
for x, label in DataLoader(data, batch_size=8, pin_memory=True):
    x, label = x.to("mtia", non_blocking=True), label.to("mtia", non_blocking=True)
    loss = (x.sum(1) - label).square().mean()
print(loss.item())
""",
    "two buffers take turns": """
buffers = [torch.empty(1000, pin_memory=True) for _ in range(2)]
events = [None, None]
for i in range(6):
    turn = i % 2
    if events[turn] is not None:
        events[turn].synchronize()
    buffers[turn].fill_(i)
    x = buffers[turn].to("mtia", non_blocking=True)
    events[turn] = torch.Event("mtia")
    events[turn].record(main)
    y = x * 2
""",
    "an event is polled": """
x, host = torch.ones(1000, device="mtia"), torch.empty(1000, pin_memory=True)
host.copy_(x, non_blocking=True)
event = torch.Event("mtia")
event.record(main)
while not event.query():
    pass
print(host.sum())
""",
    "views of memory that is being copied are made and looked at": """
x, host = torch.ones(64, 64, device="mtia"), torch.empty(64, 64, pin_memory=True)
host.copy_(x, non_blocking=True)
half, like, flat = host[:32].t(), torch.empty_like(host), host.view(-1)
print(half.shape, like.stride(), flat.is_contiguous(), host.is_pinned())
back = host.to("mtia", non_blocking=True)
torch.mtia.synchronize()
print(half.sum())
""",
    "a function of the host reads in stream order": """
import torch_mtia
x, host, totals = torch.ones(1000, device="mtia"), torch.empty(1000, pin_memory=True), []
for i in range(5):
    host.copy_(x, non_blocking=True)
    torch_mtia.launch_host_function(main, lambda: totals.append(host.sum().item()))
    x.add_(1)
main.synchronize()
print(totals, host.sum())
""",
}
