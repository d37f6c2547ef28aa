"""Every store against the contracts, and against the oracle."""
