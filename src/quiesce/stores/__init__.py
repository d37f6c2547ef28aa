"""Three stores over one contract: `memory` (the oracle), `sqlite`, `postgres`. See `ports/store.py` for the contract."""
