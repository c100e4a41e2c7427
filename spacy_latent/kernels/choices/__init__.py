"""Choices of items, and projections of rows onto the simplex."""
