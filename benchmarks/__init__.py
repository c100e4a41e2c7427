"""Speed beside the peers: ``python -m benchmarks inference | pipeline | gpu``."""
