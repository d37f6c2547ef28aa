"""The aggregates of the two SQL stores, written once over named queries. No SQL text and no driver in here."""
