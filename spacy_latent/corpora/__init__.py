"""Readers and generators of training data."""
