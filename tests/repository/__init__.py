"""Tests of pages, recipes, benchmark programs, packaging and language.

``reference``, ``drawings``, ``notebooks`` and ``training_film`` write pages and pictures.
"""
