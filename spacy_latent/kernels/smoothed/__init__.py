"""Dynamic programming with the quadratically smoothed maximum."""
