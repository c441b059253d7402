"""A differential fuzzer for Triton on mtia: random small kernels, run here and by Triton's interpreter.

    python -m tools.triton_fuzz --count 1000 --seed 0     # seeds 0 .. 999
    python -m tools.triton_fuzz --seed 4711 --show        # one kernel, its source printed

program.py     what a program is: its source and its arguments
values.py      the values of a program under construction, with what is known about them
builder.py     a program under construction
table.py       the table of statements that a program is made of; to add one, see its head
combine.py     the functions that reductions and scans combine elements with
statements.py, across_lanes.py, moves.py, control.py, launches.py   the statements
kernels.py     makes a kernel of a source, and hands out its buffers, in both processes
oracle.py      the interpreter, in such a process
device.py      the device, in another
shrink.py      makes a program that fails as short as it still fails
__main__.py    runs programs and compares

Programs have defined results only. No lane reads memory that is masked off without `other`; no two programs of a grid,
and no two lanes of a store, touch the same element, but through atomics that commute; integers wrap; divisors are
positive and shifts shorter than the type. Floating-point values are multiples of a power of two, small enough for every
intermediate result to be exact whatever the order: so results are compared bit for bit. Functions that round (exp, sin,
division) appear only last, on exact operands, and are compared with a tolerance of a few units in the last place.
"""
