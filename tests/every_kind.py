"""A script that makes an object of each kind that the device owns something of: `kinds`, by name."""

from __future__ import annotations

EVERY_KIND = """
import faulthandler, gc, os, signal, threading, torch, torch_mtia

device = torch.device("mtia")
x = torch.arange(1000.0, device=device)
side = torch.Stream(device)
held = threading.Event()

def on_side(tensor):
    with torch.mtia.stream(side):
        result = tensor + 1
    tensor.record_stream(side)
    return result

def pinned():
    memory = torch.ones(1000, pin_memory=True)
    memory.to(device, non_blocking=True)
    return memory

def graph():
    graph = torch.mtia.MTIAGraph()
    with torch.mtia.graph(graph, stream=torch.Stream(device)):
        torch_mtia.launch_host_function(torch.mtia.current_stream(), lambda: None)
        (x + torch.ones(1000, device=device)).cos()
    graph.replay()
    return graph

def event():
    event = torch.Event(device, enable_timing=True)
    event.record(side)
    return event

def shared():
    tensor = torch.arange(1000.0, device=device)
    on_side(tensor)
    return tensor

def lazy_clones():
    tensor = torch.arange(1000.0, device=device)
    return [tensor, torch._lazy_clone(tensor)]

def gradient():
    leaf = torch.ones(1000, device=device, requires_grad=True)
    return [leaf, leaf.exp().sum()]

kinds = {
    "tensor": lambda: torch.arange(1000.0, device=device),
    "large tensor": lambda: torch.empty(2**22, device=device),
    "tensor of two streams": shared,
    "pinned memory": pinned,
    "pinned memory without copies": lambda: torch.ones(1000, pin_memory=True),
    "view of pinned memory": lambda: pinned()[10:].numpy(),
    "stream": lambda: torch.Stream(device),
    "event": event,
    "graph": graph,
    "generator": lambda: torch.Generator(device).manual_seed(1),
    "lazy clones": lazy_clones,
    "view of the host": lambda: torch_mtia.memory.host_view(x),
    "gradient": gradient,
    "result of a fallback": lambda: x.nonzero(),
}
"""
