"""spaCy components of this package.

spaCy imports the modules of components whenever a pipeline is made. So they import torch, and what
needs it, inside of functions.
"""
