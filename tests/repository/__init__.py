"""Tests of pages, recipes, benchmark programs, packaging and language.

``drawings``, ``notebooks`` and ``training_film`` write pages and pictures; ``reference`` makes the
entries of a page of the site.
"""
