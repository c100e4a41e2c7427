"""Speed compared with other libraries: ``python -m benchmarks inference | pipeline | gpu``."""
