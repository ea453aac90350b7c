"""The compiled kernels' source: numba functions and LLVM instructions, compiled to object files.

Nothing here is imported while a model runs. `caldrix_cpu.codegen.build` runs as a process of its
own, once for each machine, and `caldrix_cpu.library` loads what it wrote.
"""
