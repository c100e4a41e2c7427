"""Recurrences over tag sequences and labelled segments."""
