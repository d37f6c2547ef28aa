"""The testing kit: a clock that stands still, valid sample records, and suites that every implementation must pass."""
