"""Sets of latent structures, and exact inference on them."""
