"""Memory that becomes more with each step, and is not used any more."""

from __future__ import annotations

from sanitizer.corpus import Program

LEAKS = [
    Program(
        "losses are summed with their graphs",
        "leak",
        """
weight = torch.ones(64, 64, device="mtia", requires_grad=True)
total = torch.zeros((), device="mtia")
for _ in range(20):
    loss = (weight * 2).exp().mean()
    MEND
    total = total + loss
""",
        "loss = loss.detach()",
        ("allocation",),
    ),
    Program(
        "a list keeps losses with their graphs",
        "leak",
        """
weight, losses = torch.ones(64, 64, device="mtia", requires_grad=True), []
for _ in range(20):
    loss = (weight * 2).exp().mean()
    MEND
    losses.append(loss)
""",
        "loss = loss.item()",
        ("allocation",),
    ),
    Program(
        "a hook keeps outputs",
        "leak",
        """
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU()).to("mtia")
outputs = []
model[1].register_forward_hook(lambda module, args, output: outputs.append(output))
with torch.no_grad():
    for _ in range(20):
        MEND
        y = model(torch.ones(8, 64, device="mtia"))
""",
        "outputs.clear()",
        ("allocation",),
    ),
    Program(
        "exceptions keep what their tracebacks refer to",
        "leak",
        """
def step(x):
    activations = (x + 1).exp()
    raise ValueError("a bad batch")
x, errors = torch.ones(64, 64, device="mtia"), []
for _ in range(20):
    try:
        step(x)
    except ValueError as error:
        MEND
        errors.append(error)
""",
        "error = error.with_traceback(None)",
        ("allocation",),
    ),
    Program(
        "a cache has no bound",
        "leak",
        """
cache = {}
def mask(length):
    if length not in cache:
        cache[length] = torch.ones(length, length, device="mtia")
    MEND
    return cache[length]
for length in range(8, 40):
    y = mask(length).sum()
""",
        "cache.pop(length - 4, None)",
        ("allocation",),
    ),
    Program(
        "a list keeps all outputs",
        "leak",
        """
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8)).to("mtia")
outputs = []
def evaluate(batch):
    with torch.no_grad():
        outputs.append(model(batch.to("mtia")))
for _ in range(20):
    MEND
    evaluate(torch.ones(4, 8))
""",
        "outputs = []",
        ("allocation",),
    ),
    Program(
        "statistics of each step are kept by its number",
        "leak",
        """
statistics, weight = {}, torch.ones(64, device="mtia")
for step in range(30):
    weight = weight * 0.9
    statistics[step] = {"mean": weight.mean(), "square": weight.square().mean()}
    MEND
""",
        "statistics[step] = {name: value.item() for name, value in statistics[step].items()}",
        ("allocation",),
    ),
    Program(
        "some batches are kept",
        "leak",
        """
difficult, weight = [], torch.ones(64, device="mtia")
for step in range(100):
    errors = (weight * step).exp()
    if step % 7 == 3:
        MEND
        difficult.append(errors)
""",
        "difficult.clear()",
        ("allocation",),
    ),
    Program(
        "functools.cache of what is computed for each length",
        "leak",
        """
import functools
SIZE = None
MEND
@functools.lru_cache(SIZE)
def positions(length):
    return (torch.arange(length, device="mtia") * 0.5).sin()
for length in range(30):
    y = positions(length + 1).sum()
""",
        "SIZE = 64",
        ("allocation",),
    ),
    Program(
        "a validation in the end adds up losses with their graphs",
        "leak",
        """
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)).to("mtia")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(50):
    model(torch.ones(4, 8, device="mtia")).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
def validate():
    total = torch.zeros((), device="mtia")
    for _ in range(20):
        loss = model(torch.ones(4, 8, device="mtia")).mean()
        MEND
        total += loss
    return total
total = validate()
""",
        "loss = loss.detach()",
        ("allocation",),
    ),
    Program(
        "a list keeps outputs of a program with parameters that have no memory yet, and classes that raise",
        "leak",
        """
class Refuses(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        raise TypeError(function)
class Hidden(torch.nn.Module):
    def __getattribute__(self, name):
        raise AttributeError(name)
lazy, hidden = torch.nn.LazyLinear(8).to("mtia"), Hidden.__new__(Hidden)
odd = torch.ones(8, device="mtia").as_subclass(Refuses)
clone = torch._lazy_clone(torch.ones(8, device="mtia"))
outputs, weight = [], torch.ones(64, device="mtia")
for _ in range(20):
    weight = weight * 0.9
    MEND
    outputs.append((weight * 2).exp())
""",
        "outputs.clear()",
        ("allocation",),
    ),
]

RIGHT = {
    "a model and its optimizer": """
model = torch.nn.Sequential(*[torch.nn.Linear(16, 16) for _ in range(20)]).to("mtia")
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(15):
    loss = model(torch.ones(4, 16, device="mtia")).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
""",
    "a model that is not used": """
model = torch.nn.Sequential(*[torch.nn.BatchNorm1d(16) for _ in range(20)]).to("mtia")
""",
    "losses that are looked at in the end": """
losses = []
weight = torch.ones(64, 64, device="mtia")
for _ in range(20):
    losses.append((weight * 2).mean())
print(torch.stack(losses).mean().item())
""",
    "batches that each epoch uses": """
batches = [torch.full((64,), float(i), device="mtia") for i in range(20)]
for _ in range(2):
    for batch in batches:
        y = batch.sum()
""",
    "copies of all parameters": """
model = torch.nn.Sequential(*[torch.nn.Linear(16, 16) for _ in range(20)]).to("mtia")
best = {name: value.clone() for name, value in model.state_dict().items()}
first = {}
for name, value in model.state_dict().items():
    first[name] = value.clone()
""",
    "copies of all parameters, from time to time": """
weights = {f"layer {i}": torch.ones(16, 16, device="mtia") for i in range(20)}
for step in range(20):
    for weight in weights.values():
        weight.mul_(0.9).add_(weight.mean())
    if step % 5 == 0:
        best = {name: weight.clone() for name, weight in weights.items()}
""",
    "the activations of a deep network": """
model = torch.nn.Sequential(*[torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.GELU()) for _ in range(20)])
model.to("mtia")
output = model(torch.ones(4, 16, device="mtia"))
print(output.sum().item())
""",
    "the activations of a deep network of functions, trained": """
weights = [torch.randn(16, 16, device="mtia").mul_(0.1).requires_grad_() for _ in range(20)]
for _ in range(5):
    x = torch.ones(4, 16, device="mtia")
    for weight in weights:
        x = (x @ weight + 1).relu() * 2
    loss = x.mean()
""",
    "steps over sequences of different lengths": """
cell = torch.nn.GRUCell(8, 8).to("mtia")
for length in (4, 19, 12, 25, 7, 18, 25, 3, 20, 11, 5, 22):
    h = torch.zeros(2, 8, device="mtia")
    for _ in range(length):
        h = cell(torch.ones(2, 8, device="mtia"), h)
    loss = h.square().mean()
""",
    "keys and values of a list of layers": """
class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.key, self.value = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)
    def forward(self, x):
        return (x + 1).relu(), (self.key(x), self.value(x))
layers, cache = [Layer().to("mtia") for _ in range(20)], {}
x = torch.ones(4, 8, device="mtia")
with torch.no_grad():
    for i, layer in enumerate(layers):
        x, cache[i] = layer(x)
""",
    "the last results": """
import collections
last = collections.deque(maxlen=20)
for step in range(60):
    x = torch.ones(64, device="mtia") * step
    last.append(x.exp())
""",
    "a collection with a bound that is not full yet": """
import collections, functools
last = collections.deque(maxlen=200)
@functools.lru_cache(maxsize=200)
def powers(step):
    return (torch.ones(64, device="mtia") * step).exp()
for step in range(60):
    x = powers(step) * 2
    last.append({"step": step, "values": (x, [x.exp()])})
""",
    "a cache with a bound": """
cache = {}
def powers(step):
    if len(cache) == 16:
        cache.pop(next(iter(cache)))
    cache[step] = (torch.ones(64, device="mtia") * step).exp()
    return cache[step]
for step in range(60):
    x = powers(step) * 2
""",
    "a buffer of a fixed size, from which any is taken": """
import random
buffer = [None] * 24
for step in range(200):
    state = torch.ones(64, device="mtia") * step
    buffer[step if step < 24 else random.Random(step).randrange(24)] = state.exp()
""",
    "outputs that are concatenated in the end": """
model, outputs = torch.nn.Linear(8, 8).to("mtia"), []
with torch.no_grad():
    for _ in range(30):
        batch = torch.ones(4, 8, device="mtia")
        outputs.append(model(batch * 2))
print(torch.cat(outputs).mean().item())
""",
    "the state of an optimizer of tensors": """
weights = [torch.ones(16, 16, device="mtia", requires_grad=True) for _ in range(30)]
optimizer = torch.optim.Adam(weights)
sum((weight * 2).sum() for weight in weights).backward()
optimizer.step()
""",
    "a data set on the device": """
inputs, targets = [], []
for i in range(40):
    batch, target = torch.ones(16, 8), torch.ones(16)
    inputs.append(batch.to("mtia"))
    targets.append(target.to("mtia"))
x = inputs[0] * 2
""",
    "reference cycles": """
class Node:
    def __init__(self):
        self.me, self.value = self, torch.ones(64, device="mtia")
for _ in range(30):
    Node()
""",
    "gradients that are added up": """
weight = torch.ones(64, 64, device="mtia", requires_grad=True)
for _ in range(20):
    (weight * 2).exp().mean().backward()
""",
}
