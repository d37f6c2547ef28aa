"""Values and pure functions: what is true of runs, whatever store holds them and whoever runs them.

Nothing here does I/O, reads a clock, draws randomness, logs or awaits. Time and identities come in as arguments.
"""
