"""Random interleavings of what a program does to the device's runtime, compared with the CPU bit for bit.

A program is a list of actions (actions.py) of one or several threads, on streams of one or two devices: operators,
copies, events, allocations, frees, pinned memory, lazy clones, resizes, graphs, host functions, running out of memory.
What orders them is not part of it: order.py adds to each action the least synchronization that a correct program needs,
of kinds chosen at random (`wait_stream`, events, `record_stream`, waits of the host). So the result is that of the same
actions one after the other on the CPU, whatever the streams do, and at the end every byte of memory is back.

    python -m tools.runtime_fuzz --seed 0 --count 1000

runs programs in processes of several settings (profiles.py), most of them with TORCH_MTIA_DELAY, which makes a missing
order show. A failure is printed with its seed and a program that was shrunk while it still failed; a process that
crashes or hangs is replaced, and the run goes on.
"""
