"""Budgets: what a run may use, reserved before use, in units that its owner names (`tool_calls`, `tokens`, `usd_micros`).

Keeps: used + reserved never passes the limit; an interrupted reservation is never given back on a hope, it stays reserved
until its operation's outcome is known (RR-19). A child draws on its own allowance and on each ancestor's: a reservation
is granted by all of them in one transaction or by none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from quiesce.domain.errors import InvalidInput
from quiesce.domain.limits import DEFAULT_LIMITS

Amounts = Mapping[str, int]
"""Unit → whole number of it. Units without an allowance are counted and not limited."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowance:
    """One unit of one run. `limit` None: counted only."""

    unit: str
    limit: int | None = None
    used: int = 0
    reserved: int = 0

    @property
    def left(self) -> int | None:
        """What can still be reserved; None if there is no limit."""
        return None if self.limit is None else max(0, self.limit - self.used - self.reserved)


@dataclass(frozen=True, slots=True)
class Budget:
    """The allowances of one run, ordered by unit."""

    allowances: tuple[Allowance, ...] = ()

    def of(self, unit: str) -> Allowance:
        """Return the allowance of `unit`, unlimited and unused if it was never named."""
        return next((a for a in self.allowances if a.unit == unit), Allowance(unit=unit))

    def shortfall(self, amounts: Amounts) -> Allowance | None:
        """Return the first allowance that has not enough left for `amounts`, or None if all fit."""
        for unit, amount in amounts.items():
            left = self.of(unit).left
            if left is not None and amount > left:
                return self.of(unit)
        return None

    def moved(self, *, used: Amounts, reserved: Amounts) -> Budget:
        """Return the budget after the given changes, which may be negative. The caller has asked `shortfall` first.

        Use beyond a reservation is counted in full: it happened.
        """
        table = {a.unit: a for a in self.allowances}
        for unit in {*used, *reserved}:
            now = table.get(unit, Allowance(unit=unit))
            table[unit] = replace(now, used=now.used + used.get(unit, 0), reserved=max(0, now.reserved + reserved.get(unit, 0)))
        return Budget(tuple(table[unit] for unit in sorted(table)))

    def to_json(self) -> dict[str, dict[str, int | None]]:
        """Return unit → limit, used, reserved; the form stored and shown."""
        return {a.unit: {"limit": a.limit, "used": a.used, "reserved": a.reserved} for a in self.allowances}

    @classmethod
    def from_json(cls, table: Mapping[str, Mapping[str, int | None]]) -> Budget:
        """Read back `to_json`."""
        return cls(
            tuple(
                Allowance(unit=u, limit=row["limit"], used=row["used"] or 0, reserved=row["reserved"] or 0)
                for u, row in sorted(table.items())
            )
        )

    @classmethod
    def of_limits(cls, limits: Amounts | None) -> Budget:
        """Make a fresh budget from unit → limit. Raises `InvalidInput` for a limit that is not a whole number ≥ 0."""
        rows: list[Allowance] = []
        for unit, limit in sorted((limits or {}).items()):
            check_amount(f"budget.{unit}", limit)
            if not unit or len(unit) > DEFAULT_LIMITS.name_chars_max:
                raise InvalidInput(field="budget", value=unit, rule="units are names of 1 to 200 characters")
            rows.append(Allowance(unit=unit, limit=limit))
        return cls(tuple(rows))


def check_amount(field: str, amount: object) -> None:
    """Raise `InvalidInput` unless `amount` is a whole number from 0 to 2**53 - 1."""
    if isinstance(amount, bool) or not isinstance(amount, int) or not 0 <= amount < 2**53:
        raise InvalidInput(field=field, value=amount, rule="must be a whole number ≥ 0")


def difference(new: Amounts, old: Amounts) -> dict[str, int]:
    """Return `new - old` by unit, without zeros."""
    changes = {unit: new.get(unit, 0) - old.get(unit, 0) for unit in {*new, *old}}
    return {unit: change for unit, change in changes.items() if change}
