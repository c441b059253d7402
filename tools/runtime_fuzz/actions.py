"""The actions that programs are made of. See writer.py."""

from __future__ import annotations

from tools.runtime_fuzz.program import Buffer, Program
from tools.runtime_fuzz.writer import DTYPES, MODULUS, Graph, Tensor, Writer, action


def generate(seed: int, devices: int) -> Program:
    """The program of a seed."""
    return Writer(seed, devices).program()


def defines(tensor: Tensor) -> tuple[tuple[str, Buffer], ...]:
    return ((tensor.name, tensor.buffer),)


# New tensors --------------------------------------------------------------------------------------------------------


@action(8)
def full(w: Writer) -> bool:
    device = w.random.randrange(max(w.devices) + 1)
    tensor = w.new("t", device, w.size(), w.random.choice(DTYPES))
    made = f"{tensor.size}, dtype=torch.{tensor.dtype}, device=devices[{device}])"
    text = f"torch.arange({made} % {MODULUS}" if w.random.random() < 0.5 else f"torch.empty({made}.fill_({w.number()})"
    return w.append("factory", f"{tensor.name} = {text}", stream=w.stream(device), defines=defines(tensor))


@action(12)
def operator(w: Writer) -> bool:
    x = w.on_device()
    if x is None:
        return False
    y = w.like(x)
    one = y is None or w.random.random() < 0.5
    texts = (
        ("({x} * 3 + 1) % 97", "{x}.flip(0)", "{x}.sort()[0]", "{x}.clone()", "torch.where({x} % 2 == 0, {x}, 5)")
        if one
        else ("({x} + {y}) % 97", "torch.where({x} > {y}, {x}, {y})", "({x} * {y}) % 89")
    )
    text = w.random.choice(texts)
    dtype = x.dtype
    if y is not None and not one:
        dtype = "float32" if "float32" in (x.dtype, y.dtype) else max(x.dtype, y.dtype)
    result = w.new("t", x.buffer.device, x.size, dtype, x.form)
    reads = (x.name,) if one or y is None else (x.name, y.name)
    text = text.format(x=x.name, y=y.name if y else "")
    return w.append(
        "operator", f"{result.name} = {text}", stream=w.stream(x.buffer.device), defines=defines(result), reads=reads
    )


@action(3)
def matrix_product(w: Writer) -> bool:
    x = w.pick(lambda tensor: tensor.buffer.device >= 0 and tensor.size >= 16)
    if x is None:
        return False
    side = {16: 4, 512: 16, 20_000: 128, 300_000: 512}[x.size]
    result = w.new("t", x.buffer.device, 0, "float32", f"{side} x {side}")
    matrix = f"({x.name}[:{side * side}].view({side}, {side}) % 4).float()"
    result_text = f"{result.name} = ({matrix} @ {matrix})"
    return w.append(
        "matrix product", result_text, stream=w.stream(x.buffer.device), defines=defines(result), reads=(x.name,)
    )


@action(2)
def reduce(w: Writer) -> bool:
    x = w.on_device()
    if x is None:
        return False
    result = w.new("t", x.buffer.device, 1, "int64")
    text = w.random.choice(("({x} % 50).to(torch.int64).sum().view(1)", "{x}.max().to(torch.int64).view(1)"))
    return w.append(
        "reduction",
        f"{result.name} = {text.format(x=x.name)}",
        stream=w.stream(x.buffer.device),
        defines=defines(result),
        reads=(x.name,),
    )


@action(2)
def gradient(w: Writer) -> bool:
    x = w.pick(lambda tensor: tensor.buffer.device >= 0 and tensor.size > 0)
    if x is None:
        return False
    result = w.new("t", x.buffer.device, x.size, "float32")
    text = f"{result.name} = gradient({x.name})"
    return w.append("autograd", text, stream=w.stream(x.buffer.device), defines=defines(result), reads=(x.name,))


@action(2)
def fall_back(w: Writer) -> bool:
    """An operator that has no kernel of the device, and whose result's size depends on data."""
    x = w.on_device()
    if x is None:
        return False
    result = w.name("n")
    return w.append(
        "fall back",
        f"{result} = torch.unique({x.name} % 7).cpu()",
        stream=w.stream(x.buffer.device),
        reads=(x.name,),
        makes=(result,),
        waits=True,
    )


@action(5)
def view(w: Writer) -> bool:
    x = w.pick(lambda tensor: tensor.buffer.device >= 0 and tensor.size > 8)
    if x is None:
        return False
    text = w.random.choice(("[3:]", "[::2]", "[5:-2]", ".view(2, -1).t()", ".view(-1, 4)[:, 1]"))
    result = Tensor(w.name("t"), x.buffer, f"{x.size}{text}", 0, x.dtype, w.thread, x.graph)
    w.tensors.append(result)
    return w.append("view", f"{result.name} = {x.name}{text}", shares=((result.name, x.name),))


# In place -----------------------------------------------------------------------------------------------------------


@action(10)
def in_place(w: Writer) -> bool:
    x = w.on_device()
    if x is None:
        return False
    text = w.random.choice(
        (
            "{x}.add_(1)",
            "{x}.mul_(3).remainder_(97)",
            "{x}.fill_({k})",
            "{x}[1:] = {k}",
            "torch.add({x}, 2, out={x})",
            "torch._foreach_add_([{x}, {x}], 1)",
            "{x}.zero_()",
            "{x}.copy_({x}.flip(0))",
        )
    )
    return w.append(
        "in place",
        text.format(x=x.name, k=w.number()),
        stream=w.stream(x.buffer.device),
        reads=(x.name,),
        writes=(x.name,),
    )


@action(5)
def in_place_of_two(w: Writer) -> bool:
    x = w.on_device()
    y = x and w.like(x)
    if x is None or y is None:
        return False
    text = w.random.choice(
        ("{x}.copy_({y})", "{x}[:].copy_({y}.flip(0))", "torch.maximum({x}, {y}.to({x}.dtype), out={x})")
    )
    return w.append(
        "in place",
        text.format(x=x.name, y=y.name),
        stream=w.stream(x.buffer.device),
        reads=(x.name, y.name),
        writes=(x.name,),
    )


# Memory -------------------------------------------------------------------------------------------------------------


@action(14)
def delete(w: Writer) -> bool:
    x = w.pick(lambda tensor: not tensor.graph)
    if x is None:
        return False
    w.forget(x)
    return w.append("free", f"del {x.name}", deletes=(x.name,))


@action(3)
def lazy_clone(w: Writer) -> bool:
    x = w.pick(lambda tensor: tensor.buffer.loose and not tensor.graph and tensor.size > 0)
    if x is None or w.threads > 1:  # c10 makes lazy clones of a storage on one thread at a time
        return False
    result = Tensor(w.name("t"), x.buffer, x.form, x.size, x.dtype, w.thread)
    w.tensors.append(result)
    w.cloned_lazily.append(x.buffer)
    return w.append(
        "lazy clone",
        f"{result.name} = torch._lazy_clone({x.name})",
        stream=w.stream(x.buffer.device),
        shares=((result.name, x.name),),
    )


@action(2)
def resize(w: Writer) -> bool:
    x = w.pick(
        lambda tensor: tensor.buffer.device >= 0 and not tensor.graph and tensor.buffer.loose and tensor.size > 0
    )
    # Of lazy clones, upstream's resize_ leaves a storage that cannot be cloned lazily again, on the CPU too.
    if (
        x is None
        or any(buffer is x.buffer for buffer in w.cloned_lazily)
        or any(t.buffer is x.buffer and t is not x for t in w.tensors)
    ):
        return False
    return w.append(
        "resize",
        f"{x.name}.untyped_storage().resize_({x.name}.untyped_storage().nbytes() * 2)",
        stream=w.stream(x.buffer.device),
        reads=(x.name,),
        writes=(x.name,),
        moves=(x.name,),
    )


@action(2)
def out_of_memory(w: Writer) -> bool:
    device = w.random.choice(w.devices)
    return w.append("out of memory", f"out_of_memory(devices[{device}])", stream=w.stream(device))


@action(1)
def squeeze(w: Writer) -> bool:
    """From here on, for some time, allocations fail that need more than what is cached."""
    if w.threads > 1:
        return False
    fraction = w.random.choice((0.0001, 1.0, 1.0))
    return w.append("out of memory", f"limit_memory({fraction})")


@action(2)
def empty_cache(w: Writer) -> bool:
    text = w.random.choice(("torch.accelerator.empty_cache()", "torch.accelerator.empty_host_cache()", "gc.collect(0)"))
    return w.append("empty cache", text)


@action(2)
def synchronize(w: Writer) -> bool:
    stream = w.random.randrange(len(w.devices))
    text = w.random.choice(("streams[{}].synchronize()", "streams[{}].query()", "streams[{}].record_event().query()"))
    return w.append("wait", text.format(stream))


# Copies -------------------------------------------------------------------------------------------------------------


@action(3)
def to_host(w: Writer) -> bool:
    x = w.on_device()
    if x is None:
        return False
    result = w.name("n")
    text = w.random.choice(
        ("{x}.cpu().clone()", "torch.tensor({x}.reshape(-1)[-1].item())", "torch.tensor({x}[:3].tolist())")
    )
    return w.append(
        "copy to host",
        f"{result} = {text.format(x=x.name)}",
        stream=w.stream(x.buffer.device),
        reads=(x.name,),
        makes=(result,),
        waits=True,
    )


@action(3)
def from_pageable(w: Writer) -> bool:
    device = w.random.choice(w.devices)
    result = w.new("t", device, w.size(), w.random.choice(DTYPES))
    source = f"torch.arange({result.size}, dtype=torch.{result.dtype}) % {w.number()}"
    text = f"{result.name} = ({source}).to(devices[{device}], non_blocking={w.random.random() < 0.5})"
    return w.append("copy from host", text, stream=w.stream(device), defines=defines(result))


@action(3)
def to_other_device(w: Writer) -> bool:
    x = w.on_device()
    if x is None or max(w.devices) == 0 or x.graph:
        return False
    device = 1 - x.buffer.device
    facts = {"stream": w.stream(x.buffer.device), "other": w.stream(device), "reads": (x.name,)}
    y = w.pick(lambda t: t.buffer.device == device and t.form == x.form and not t.graph)
    if y is not None and w.random.random() < 0.5:
        return w.append("copy between devices", f"{y.name}.copy_({x.name})", writes=(y.name,), **facts)
    result = w.new("t", device, x.size, x.dtype, x.form)
    text = f"{result.name} = {x.name}.to(devices[{device}], copy=True, non_blocking={w.random.random() < 0.5})"
    return w.append("copy between devices", text, defines=defines(result), **facts)


@action(3)
def pinned(w: Writer) -> bool:
    result = w.new("h", -1, w.size(), w.random.choice(DTYPES))
    return w.append(
        "pinned", f"{result.name} = pinned({result.size}, torch.{result.dtype}, {w.number()})", defines=defines(result)
    )


@action(6)
def from_pinned(w: Writer) -> bool:
    h = w.pick(lambda tensor: tensor.buffer.device < 0)
    if h is None:
        return False
    x = w.pick(lambda tensor: tensor.buffer.device >= 0 and tensor.size == h.size)
    through = w.random.choice(("{h}", "{h}", "{h}[:]", "torch.from_numpy({h}.numpy())"))
    source = through.format(h=h.name)
    if x is not None and w.random.random() < 0.5:
        return w.append(
            "pinned",
            f"{x.name}.copy_({source}, non_blocking=True)",
            stream=w.stream(x.buffer.device),
            reads=(h.name,),
            writes=(x.name,),
        )
    device = w.random.choice(w.devices)
    result = w.new("t", device, h.size, h.dtype)
    return w.append(
        "pinned",
        f"{result.name} = {source}.to(devices[{device}], non_blocking=True, copy=True)",
        stream=w.stream(device),
        defines=defines(result),
        reads=(h.name,),
    )


@action(5)
def to_pinned(w: Writer) -> bool:
    h = w.pick(lambda tensor: tensor.buffer.device < 0)
    x = h and w.pick(lambda tensor: tensor.buffer.device >= 0 and tensor.size == h.size)
    if h is None or x is None:
        return False
    target, source = w.random.choice(((f"{h.name}", x.name), (f"{h.name}[7:]", f"{x.name}[7:]")))
    return w.append(
        "pinned",
        f"{target}.copy_({source}, non_blocking=True)",
        stream=w.stream(x.buffer.device),
        reads=(x.name,),
        writes=(h.name,),
    )


@action(2)
def host_reads_pinned(w: Writer) -> bool:
    h = w.pick(lambda tensor: tensor.buffer.device < 0)
    if h is None:
        return False
    result = w.name("n")
    return w.append("pinned", f"{result} = {h.name}.clone()", reads=(h.name,), makes=(result,))


@action(2)
def host_writes_pinned(w: Writer) -> bool:
    h = w.pick(lambda tensor: tensor.buffer.device < 0)
    if h is None:
        return False
    return w.append("pinned", f"{h.name}.add_({w.number()}).remainder_(97)", reads=(h.name,), writes=(h.name,))


# Host functions -----------------------------------------------------------------------------------------------------


@action(3)
def host_function(w: Writer) -> bool:
    stream = w.random.randrange(len(w.devices))
    device = w.random.choice(w.devices)
    size = w.size()
    made = f"torch.empty({size}, device=devices[{device}]).fill_(7)"
    function = w.random.choice(
        (
            f"lambda: {made}",
            f"lambda: on({w.stream(device)}, lambda: {made})",
            f"lambda: on({stream}, lambda: torch.full(({size},), 3, device=devices[{w.devices[stream]}]))",
            "lambda: torch.accelerator.empty_cache()",
            f"lambda: out_of_memory(devices[{device}])",
        )
    )
    return w.append("host function", f"host_function({stream}, {function})", stream=stream)


@action(2)
def host_function_reads_pinned(w: Writer) -> bool:
    h = w.pick(lambda tensor: tensor.buffer.device < 0)
    if h is None:
        return False
    result = w.name("n")
    stream = w.random.randrange(len(w.devices))
    text = f"host_function({stream}, lambda h={h.name}: keep({result!r}, h.clone()))"
    return w.append("host function", text, stream=stream, reads=(h.name,))


@action(2)
def host_function_frees(w: Writer) -> bool:
    """The last reference is the function's, which is dropped some time after it ran, on any thread."""
    x = w.pick(lambda tensor: tensor.buffer.device >= 0 and not tensor.graph)
    if x is None:
        return False
    w.forget(x)
    stream = w.random.randrange(len(w.devices))
    return w.append(
        "host function", f"host_function({stream}, lambda x={x.name}: None); del {x.name}", deletes=(x.name,)
    )


# Graphs -------------------------------------------------------------------------------------------------------------


@action(3)
def capture(w: Writer) -> bool:
    """Of a few operators, on one stream or with a fork, and a first replay."""
    device = w.random.choice(w.devices)
    inputs = [t for t in w.tensors if t.buffer.device == device and not t.buffer.loose and t.size > 0 and not t.graph]
    if not inputs or w.threads > 1:
        return False
    name = w.name("g")
    captured, replayed, forked = w.stream(device), w.stream(device), w.stream(device)
    graph = Graph(name, w.thread, captured, [], [], [])
    lines = []
    for _ in range(w.random.randint(1, 4)):
        x = w.random.choice(inputs)
        if w.random.random() < 0.4:
            lines.append(f"{x.name}.add_(1).remainder_(97)")
            graph.writes.append(x)
        else:
            lines.append(f"temporary = {x.name} * 2 + 1")
            result = Tensor(w.name("t"), Buffer(device, loose=True), x.form, x.size, x.dtype, w.thread, name)
            lines.append(f"{result.name} = (temporary + {x.name}) % 89")
            graph.results.append(result)
        graph.reads.append(x)
    if forked != captured and w.random.random() < 0.4:
        half = len(lines) // 2
        lines[half:] = [
            f"streams[{forked}].wait_stream(streams[{captured}])",
            f"with streams[{forked}]:",
            *(f"    {line}" for line in lines[half:] or ["pass"]),
            f"streams[{captured}].wait_stream(streams[{forked}])",
        ]
    for tensor in (*graph.reads, *graph.writes):
        for other in w.tensors:
            if other.buffer is tensor.buffer:
                other.graph = name
    w.tensors += graph.results
    w.graphs.append(graph)
    body = "\n".join(lines)
    results = [result.name for result in graph.results]
    return w.append(
        "graph",
        f"{name} = record({captured}, {body!r}, {results}); {name}.replay()",
        stream=replayed,
        reads=tuple({x.name for x in graph.reads}),
        writes=tuple({x.name for x in graph.writes}),
        defines=tuple((result.name, result.buffer) for result in graph.results),
        makes=(name,),
    )


@action(6)
def replay(w: Writer) -> bool:
    graphs = [graph for graph in w.graphs if graph.thread == w.thread]
    if not graphs:
        return False
    graph = w.random.choice(graphs)
    return w.append(
        "graph",
        f"{graph.name}.replay()",
        stream=w.stream(graph.reads[0].buffer.device),
        uses=(graph.name,),
        reads=tuple({x.name for x in graph.reads}),
        writes=tuple({x.name for x in (*graph.writes, *graph.results)}),
    )


@action(2)
def drop_graph(w: Writer) -> bool:
    """With all that is left to do for its replays."""
    if not w.graphs:
        return False
    graph = w.random.choice(w.graphs)
    w.graphs.remove(graph)
    for tensor in w.tensors:
        if tensor.graph == graph.name:
            tensor.graph = ""
    text = w.random.choice(("{}.reset()", "del {}"))
    return w.append("graph", text.format(graph.name), deletes=(graph.name,))
