"""The OpenCL lanes: hip on AMD GPUs, host on a CPU device. For now they only find their devices."""
