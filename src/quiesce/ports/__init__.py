"""Protocols: what the runtime needs from the world. Each method states effect, outcomes and atomicity; no code here."""
