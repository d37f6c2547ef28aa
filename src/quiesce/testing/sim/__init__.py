"""Simulated worlds of the real runtime: workers that die, freeze and race, in virtual time, from one seed."""
