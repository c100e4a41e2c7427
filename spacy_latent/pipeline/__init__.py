"""spaCy components of this package.

spaCy imports the modules of components whenever a pipeline is made. So these modules import torch,
and modules that need it, inside functions.
"""
