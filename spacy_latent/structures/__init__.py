"""What is latent: sets of structures, and exact inference on them."""
