"""How gradients get through a discrete structure."""
