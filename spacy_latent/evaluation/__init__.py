"""Evaluation, calibration, explanation and diagnosis of trained pipelines."""
