"""Trains a transformer block with its attention heads and hidden units sharded over the ranks (tensor parallelism):

    python examples/train_tensor_parallel.py
    torchrun --standalone --nproc-per-node=4 examples/train_tensor_parallel.py
    torchrun --standalone --nproc-per-node=4 examples/train_tensor_parallel.py --replicas 2

With --replicas, the ranks form a mesh of two dimensions: tensor parallelism within a replica, FSDP2 between the
replicas, each of which takes its share of each batch. The losses are those of one process.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional as F
from training import at_least_one

WIDTH, HEADS, BATCH, LENGTH = 64, 4, 16, 32
SHOWN_STEPS = 10  # a loss is printed every so many

# A linear layer that is sharded by columns computes its heads or hidden units; one that is sharded by rows adds up what
# the ranks have computed. Between the two, nothing is communicated.
PLAN = {
    "query": ColwiseParallel(),
    "key": ColwiseParallel(),
    "value": ColwiseParallel(),
    "output": RowwiseParallel(),
    "up": ColwiseParallel(),
    "down": RowwiseParallel(),
}


class Block(nn.Module):
    """Attention, then a perceptron, each with a residual connection."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.output = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH, elementwise_affine=False) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norms[0](x)
        # -1: under tensor parallelism, each rank has some of the heads
        query, key, value = (
            layer(y).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        attention = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.output(attention.transpose(1, 2).flatten(2))
        result: torch.Tensor = x + self.down(F.gelu(self.up(self.norms[1](x))))
        return result


def batches(steps: int) -> torch.Tensor:
    """The same on every rank. The network learns to repeat what it saw one place before."""
    return torch.randn(steps, BATCH, LENGTH, WIDTH, generator=torch.Generator().manual_seed(0))


def host_memory() -> float:
    """MiB of this process; what it shares with others counts for each in equal shares."""
    lines = dict(line.split(":") for line in Path("/proc/self/smaps_rollup").read_text().splitlines()[1:])
    return int(lines["Pss"].split()[0]) / 1024


def train(steps: int, replicas: int) -> None:
    start = time.perf_counter()
    accelerator = torch.accelerator.current_accelerator()
    assert accelerator is not None, "there is no device; `python -m torch_mtia` tells why"
    rank, size = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh(accelerator.type, (replicas, size // replicas), mesh_dim_names=("data", "model"))

    torch.manual_seed(0)  # the same parameters on every rank
    model: nn.Module = Block().to(accelerator)
    whole = sum(parameter.numel() for parameter in model.parameters())
    parallelize_module(model, mesh["model"], PLAN)
    if replicas > 1:
        fully_shard(model, mesh=mesh["data"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step, batch in enumerate(batches(steps), 1):
        x = batch.chunk(replicas)[mesh.get_local_rank("data")].to(accelerator)
        loss = (model(x)[:, 1:] - x[:, :-1]).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        mean = loss.detach().clone()
        dist.all_reduce(mean, dist.ReduceOp.AVG)
        if step % SHOWN_STEPS == 0 and rank == 0:
            print(f"step {step:4}: loss {mean.item():.4f}")
    report(rank, size, whole, model, start)


def report(rank: int, size: int, whole: int, model: nn.Module, start: float) -> None:
    """Prints what each rank has used."""
    parameters = (each.to_local() if isinstance(each, DTensor) else each for each in model.parameters())
    line = (
        f"rank {rank}: {sum(each.numel() for each in parameters)} of {whole} parameters, "
        f"{torch.accelerator.max_memory_allocated() / 2**20:.1f} MiB on the device, "
        f"{host_memory():.0f} MiB of the host's memory, {time.perf_counter() - start:.1f} s"
    )
    lines: list[str] = [""] * size
    dist.all_gather_object(lines, line)
    if rank == 0:
        print(*lines, sep="\n")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--steps", type=at_least_one, default=30)
    options.add_argument("--replicas", type=at_least_one, default=1)
    arguments = options.parse_args()
    torch.accelerator.set_device_index(int(os.environ.get("LOCAL_RANK", 0)))
    if dist.is_torchelastic_launched():
        dist.init_process_group()
    else:
        dist.init_process_group(init_method="tcp://localhost:0", rank=0, world_size=1)
    if dist.get_world_size() % arguments.replicas or HEADS % (dist.get_world_size() // arguments.replicas):
        raise SystemExit(
            f"{HEADS} heads are not sharded over {dist.get_world_size()} ranks, {arguments.replicas} replicas"
        )
    train(arguments.steps, arguments.replicas)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
