"""Actors and services: everything that happens in time. Knows the ports, never a concrete store or adapter."""
