"""Vector code, number types and elementary functions, for all recurrences."""
