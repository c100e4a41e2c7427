"""One-to-one and monotone alignments of two sequences."""
