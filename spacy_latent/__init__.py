"""Components for spaCy whose hidden layer is a structure.

This package is cheap to import, since torch and numba load when a component is built. spaCy finds
the components through entry points, without any import.
"""

__version__ = "0.1.0"
