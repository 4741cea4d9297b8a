"""C++ kernels for a CPU's vector units: prebuilt in wheels, otherwise compiled on first use where there is a compiler."""
