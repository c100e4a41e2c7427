"""Dependency trees that may cross: maxima, sums, samples, and trees as lists of heads."""
