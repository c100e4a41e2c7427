"""spaCy components whose hidden layer is a structure.

Importing this package is cheap: torch and numba load when a component is built. Nothing needs to be
imported for the components to be found; spaCy finds them through entry points.
"""

__version__ = "0.1.0"
