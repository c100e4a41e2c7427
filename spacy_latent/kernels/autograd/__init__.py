"""Kernels as torch operators, with batches, gradients and tracing."""
