"""A differential fuzzer for torch.compile on mtia: random programs, compiled in each mode, against eager PyTorch.

    python -m tools.compile_fuzz --count 1000 --seed 0     # seeds 0 .. 999
    python -m tools.compile_fuzz --seed 4711 --show        # one program, its source printed

program.py     what a program is: its inputs and its source, and what it is called with
builder.py     a program under construction, with what is known about its values
table.py       the table of statements that a program is made of; to add one, see its head
views.py, elementwise.py, reductions.py, indexing.py, mutation.py   the statements
generate.py    the program of a seed
comparison.py  what a program has an effect on, and what differs
execution.py   runs a program compiled, and asks others for their opinion where it differs
shrink.py      drops what a failure does not need
worker.py      the process that does all this, so that a crash ends nothing else
__main__.py    hands seeds to workers and counts

A program is called three times, with other data at other addresses, its arguments slices of larger tensors at other
offsets; with `dynamic=True` once more with larger sizes. Compared with eager PyTorch on the CPU are outputs with their
strides, inputs and the memory around them, gradients, and which outputs share memory with what.

Programs have defined results only: no index of a write occurs twice but where writes add up, no conversion overflows,
no choice between equal elements is looked at but where PyTorch promises one. Left out:

- nan and infinities in training: formulas of gradients differ in what infinity times 0 is;
- negative zeros: a float is looked at as bits only where it is data of an input;
- `as_strided` with an offset: Dynamo takes the offset of an input for a constant;
- two inputs at another place of one storage in each call: AOTAutograd takes the size of the storage for a constant;
- floor division and remainders of nan and infinities: Inductor gives `inf // 3` as inf on every device, eager code nan;
- products of nan and infinities with a constant 0: Inductor folds them to 0 on every device;
- strides of results with gaps, and None for a gradient where compiled code has zeros: not promised.

Programs still meet these faults of upstream, which are the same on every device:

- `any` of uint8, used in arithmetic: int64 where eager code has uint8; seed 30010;
- writing into `unfold` raises; seed 20004;
- a concatenation shares memory with a view of one of its parts, where both are returned
  (docs/upstream/concatenations_share_memory.md); seed 7000002, on the CPU for other dtypes than uint8.
"""
