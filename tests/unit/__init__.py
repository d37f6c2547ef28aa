"""Domain values and pure functions, mostly as complete tables."""
