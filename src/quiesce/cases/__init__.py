"""Built-in cases: small agents with scripted models, for trying things out, for tests, and for the demo."""

from quiesce.cases.catalogue import CASES, Case, agents_of, case_named, owners_of, registry

__all__ = ["CASES", "Case", "agents_of", "case_named", "owners_of", "registry"]
