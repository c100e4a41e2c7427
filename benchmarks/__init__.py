"""Programs that measure speed, memory and scores, and write the pages of results.

``python -m benchmarks PROGRAM --help`` describes a program.
"""
