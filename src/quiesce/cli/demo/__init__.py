"""The demo: the product's story in a terminal, told by real processes over a real session."""
