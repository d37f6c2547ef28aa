-- Threads go on: who is queued behind the head, under which recorded choice each turn was taken, and choices made ahead.

-- Work: a row goes when the run takes its turn or ends.
CREATE TABLE queued_run (
  run_id TEXT PRIMARY KEY,
  thread_id TEXT NOT NULL,
  number INTEGER NOT NULL,
  UNIQUE (thread_id, number)
) STRICT, WITHOUT ROWID;

-- One per run and one per receipt: no boundary is built on twice.
CREATE TABLE continuation (
  run_id TEXT NOT NULL UNIQUE,
  thread_id TEXT NOT NULL,
  tenant TEXT NOT NULL,
  head_run_id TEXT NOT NULL,
  receipt_id TEXT NOT NULL UNIQUE REFERENCES receipt (id),
  rule TEXT NOT NULL,
  policy TEXT NOT NULL CHECK (policy IN ('allow', 'reconcile', 'restart')),
  basis TEXT NOT NULL,
  carry TEXT NOT NULL CHECK (carry IN ('checkpoint', 'keep_partial', 'rollback')),
  base_run_id TEXT,
  gave_up BLOB,
  standing BLOB,
  actor BLOB NOT NULL,
  at INTEGER NOT NULL,
  ordinal INTEGER PRIMARY KEY,
  CHECK (carry = 'rollback' OR base_run_id = head_run_id),
  CHECK (carry <> 'keep_partial' OR (policy = 'reconcile' AND gave_up IS NULL))
) STRICT;

CREATE INDEX continuation_of_thread ON continuation (thread_id, ordinal);

CREATE TABLE standing_policy (
  tenant TEXT NOT NULL,
  scope TEXT NOT NULL CHECK (scope IN ('message', 'thread', 'agent')),
  name TEXT NOT NULL,
  number INTEGER NOT NULL CHECK (number > 0),
  on_gap TEXT NOT NULL CHECK (on_gap IN ('block', 'reconcile', 'restart')),
  carry TEXT NOT NULL CHECK (carry IN ('checkpoint', 'keep_partial', 'rollback')),
  declared_by TEXT NOT NULL,
  declared_at INTEGER NOT NULL,
  PRIMARY KEY (tenant, scope, name, number)
) STRICT, WITHOUT ROWID;

CREATE TRIGGER continuation_stays BEFORE UPDATE ON continuation
  BEGIN SELECT RAISE(ABORT, 'continuation is append-only'); END;
CREATE TRIGGER continuation_remains BEFORE DELETE ON continuation
  BEGIN SELECT RAISE(ABORT, 'continuation is append-only'); END;
CREATE TRIGGER standing_policy_stays BEFORE UPDATE ON standing_policy
  BEGIN SELECT RAISE(ABORT, 'standing_policy is append-only'); END;
CREATE TRIGGER standing_policy_remains BEFORE DELETE ON standing_policy
  BEGIN SELECT RAISE(ABORT, 'standing_policy is append-only'); END;
