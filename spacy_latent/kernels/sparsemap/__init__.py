"""Active-set methods for SparseMAP, and dual methods for constrained averages."""
