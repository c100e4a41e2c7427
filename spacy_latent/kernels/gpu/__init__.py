"""The same sums in Triton for a GPU, and the decision when they are used."""
