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
    activations = x.exp()
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
