"""Estimators of the gradient through a discrete structure."""
