"""Scores of parts that are computed faster than by torch."""
