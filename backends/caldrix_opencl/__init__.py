"""The OpenCL lanes: hip on AMD GPUs, and host, the same kernels on a CPU device."""
