"""Training on several processes, under ``torchrun`` or another launcher.

``torchrun --nproc-per-node 8 -m spacy_latent.distributed train config.cfg --output training``
trains any pipeline of spaCy's, with or without latent components. See ``docs/scaling.md``.
"""
