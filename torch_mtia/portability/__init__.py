"""What kernels launched on mtia will be on GPUs: compiled by Triton's own back ends, which need no GPU.

target.py, chips.py      the GPUs, and what one multiprocessor of them has
launches.py              records which kernels are launched, in which specializations
transfer.py, worker.py   a kernel as bytes, and the process that compiles it; workers.py starts the processes
assembly.py              what the compiled code says; occupancy.py, what follows for a multiprocessor
banks.py                 conflicts in shared memory, by the address arithmetic of the compiled code
source.py, layout.py     what Triton's own representations say; reasons.py, why an access is narrow
counting.py, bound.py    what a launch here accesses and computes, and the least time for it on a product
rows.py, report.py       the report; stored_rows.py, what an earlier one found; lines.py, page.py, its text and its page
strict.py                what a check in CI refuses; refusing.py, launches here that a GPU refuses

See docs/portability.md.
"""
