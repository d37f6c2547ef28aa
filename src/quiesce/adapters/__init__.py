"""Adapters: the only code that touches the real clock, random source, child processes and model providers."""
