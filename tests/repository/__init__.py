"""Tests of pages, recipes, benchmark programs, packaging and language.

``drawings``, ``notebooks`` and ``training_film`` write files of the documentation. ``reference``
returns the text of docs/reference.md, which docs/site.py adds when it builds the site.
"""
