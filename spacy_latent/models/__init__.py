"""Thinc architectures: lists of Doc in, arrays out."""
