"""Collectives and messages: what is touched before wait(). Each program runs on two ranks, which know their `rank`."""

from __future__ import annotations

from sanitizer.corpus import Program

RACES = [
    Program(
        "a sum is read before wait()",
        "race",
        """
x = torch.ones(1000, device="mtia")
work = dist.all_reduce(x, async_op=True)
MEND
y = x + 1
work.wait()
""",
        "work.wait()",
        ("aten::add", "c10d::allreduce"),
    ),
    Program(
        "a gradient is changed while it is being summed",
        "race",
        """
weight = torch.ones(100, device="mtia", requires_grad=True)
(weight * 2).sum().backward()
work = dist.all_reduce(weight.grad, async_op=True)
MEND
weight.grad.div_(2)
work.wait()
""",
        "work.wait()",
        ("aten::div", "c10d::allreduce"),
    ),
    Program(
        "the input of a send is changed before wait()",
        "race",
        """
x = torch.ones(1000, device="mtia")
if rank == 0:
    work = dist.isend(x, dst=1)
    MEND
    x.mul_(2)
else:
    work = dist.irecv(x, src=0)
work.wait()
""",
        "work.wait()",
        ("aten::mul", "c10d::send"),
    ),
    Program(
        "a message is read before it has come",
        "race",
        """
x = torch.ones(1000, device="mtia")
if rank == 0:
    work = dist.isend(x, dst=1)
else:
    work = dist.irecv(x, src=0)
    MEND
    y = x.sum()
work.wait()
""",
        "work.wait()",
        ("aten::sum", "c10d::recv"),
    ),
    Program(
        "the part that is gathered is changed meanwhile",
        "race",
        """
part, whole = torch.ones(100, device="mtia"), torch.empty(200, device="mtia")
work = dist.all_gather_into_tensor(whole, part, async_op=True)
MEND
part.zero_()
work.wait()
""",
        "work.wait()",
        ("fill", "c10d::_allgather_base"),
    ),
    Program(
        "a sum's part is read before wait()",
        "race",
        """
part, whole = torch.empty(100, device="mtia"), torch.ones(200, device="mtia")
work = dist.reduce_scatter_tensor(part, whole, async_op=True)
MEND
y = part * 2
work.wait()
""",
        "work.wait()",
        ("aten::mul", "c10d::_reduce_scatter_base"),
    ),
    Program(
        "who receives a broadcast reads it before wait()",
        "race",
        """
x = torch.ones(100, device="mtia")
work = dist.broadcast(x, src=0, async_op=True)
MEND
y = x * 2  # right on rank 0, which only sends
work.wait()
""",
        "work.wait()",
        ("aten::mul", "c10d::broadcast"),
    ),
    Program(
        "a side stream still writes what is summed",
        "race",
        """
x = torch.ones(1000, device="mtia")
side.wait_stream(main)
with side:
    x.add_(rank)
MEND
dist.all_reduce(x)
main.wait_stream(side)
""",
        "main.wait_stream(side)",
        ("c10d::allreduce", "aten::add"),
    ),
    Program(
        "another stream waits than the one that reads",
        "race",
        """
x = torch.ones(1000, device="mtia")
work = dist.all_reduce(x, async_op=True)
with side:
    work.wait()
MEND
y = x + 1
main.wait_stream(side)
""",
        "main.wait_stream(side)",
        ("aten::add", "c10d::allreduce"),
    ),
    Program(
        "of two messages only one is waited for",
        "race",
        """
mine, theirs = torch.ones(100, device="mtia"), torch.empty(100, device="mtia")
works = [dist.isend(mine, 1 - rank), dist.irecv(theirs, 1 - rank)]
works[0].wait()
MEND
y = theirs + 1
works[1].wait()
""",
        "works[1].wait()",
        ("aten::add", "c10d::recv"),
    ),
    Program(
        "calls that are coalesced are read before wait()",
        "race",
        """
tensors = [torch.ones(100, device="mtia") for _ in range(2)]
with dist._coalescing_manager(device=torch.device("mtia"), async_ops=True) as works:
    for tensor in tensors:
        dist.all_reduce(tensor)
MEND
y = tensors[1] + 1
works.wait()
""",
        "works.wait()",
        ("aten::add", "c10d::allreduce_coalesced"),
    ),
    Program(
        "a functional collective is read without wait_tensor",
        "race",
        """
x = torch.ones(100, device="mtia")
total = torch.ops._c10d_functional.all_reduce(x, "sum", dist.group.WORLD.group_name)
MEND
y = total * 2
torch.ops._c10d_functional.wait_tensor(total)
""",
        "torch.ops._c10d_functional.wait_tensor(total)",
        ("aten::mul", "c10d::allreduce"),
    ),
    Program(
        "a callback of the future is not waited for",
        "race",
        """
x = torch.ones(100, device="mtia")
future = dist.all_reduce(x, async_op=True).get_future().then(lambda done: done.value()[0] / 2)
MEND
y = x * 2
half = future.wait()
""",
        "half = future.wait()",
        ("aten::mul", "c10d::allreduce"),
    ),
]

UNINITIALIZED = [
    Program(
        "what nothing has written is summed",
        "uninitialized",
        """
x = torch.empty(1000, device="mtia")
MEND
dist.all_reduce(x)
""",
        "x.zero_()",
        ("c10d::allreduce",),
    ),
]

# What many programs do, and rightly.
RIGHT = {
    "the tensor is dropped before wait()": """
for _ in range(10):
    x = torch.ones(1 << 18, device="mtia")
    work = dist.all_reduce(x, async_op=True)
    del x
    y = torch.zeros(1 << 18, device="mtia")
    work.wait()
""",
    "who sends a broadcast goes on reading": """
x = torch.ones(100, device="mtia")
work = dist.broadcast(x, src=0, async_op=True)
if rank == 0:
    y = x * 2
work.wait()
""",
    "objects, barriers and everything that blocks": """
objects = [None, None]
dist.all_gather_object(objects, {"rank": rank, "text": "x" * (rank * 100)})
dist.barrier()
parts = [torch.empty(10, device="mtia") for _ in range(2)]
dist.all_gather(parts, torch.ones(10, device="mtia"))
dist.all_to_all_single(torch.empty(10, device="mtia"), parts[0])
dist.reduce(parts[1], dst=0)
dist.scatter(torch.empty(10, device="mtia"), parts if rank == 0 else None, src=0)
dist.gather(parts[0], [torch.empty(10, device="mtia") for _ in range(2)] if rank == 0 else None, dst=0)
assert objects[1]["rank"] == 1
""",
    "a functional collective waits when it is used": """
import torch.distributed._functional_collectives as functional
x = torch.ones(100, device="mtia")
y = functional.all_reduce(x, "sum", dist.group.WORLD) * 2
z = functional.all_gather_tensor(x, 0, dist.group.WORLD) + 1
""",
    "DDP sums gradients while backward goes on": """
from torch.nn.parallel import DistributedDataParallel
torch.manual_seed(0)
model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(4)]).to("mtia")
model = DistributedDataParallel(model, bucket_cap_mb=0.02)
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    model(torch.randn(8, 64, device="mtia")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
""",
    "FSDP2 gathers and reduces on its own streams": """
from torch.distributed.fsdp import fully_shard
torch.manual_seed(0)
model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(4)]).to("mtia")
for layer in model:
    fully_shard(layer)
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    model(torch.randn(8, 64, device="mtia")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
""",
    "a pipeline, whose stages learn their shapes on memory that nobody has filled": """
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
part = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()).to("mtia")
stage = PipelineStage(part, rank, dist.get_world_size(), torch.device("mtia", torch.accelerator.current_device_index()))
schedule = Schedule1F1B(stage, 4, loss_fn=lambda output, target: (output - target).square().mean())
if rank == 0:
    schedule.step(torch.randn(8, 8, device="mtia"))
else:
    schedule.step(target=torch.randn(8, 8, device="mtia"))
""",
}
