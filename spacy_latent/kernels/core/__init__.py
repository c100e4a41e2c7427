"""Compilation, threads, status codes and random draws, on which all kernels are built."""
