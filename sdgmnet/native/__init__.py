"""C++ kernels for a CPU's vector units, compiled on first use where there is a C++ compiler."""
