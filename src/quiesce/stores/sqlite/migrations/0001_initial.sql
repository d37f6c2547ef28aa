-- The first schema. Columns stand in the order of the fields they hold; instants are microseconds since 1970.
-- Payloads are BLOBs of canonical JSON, so that any character JSON can hold is kept.

CREATE TABLE clock_anchor (
  only INTEGER PRIMARY KEY CHECK (only = 1),
  boot_id TEXT NOT NULL,
  wall_us INTEGER NOT NULL,
  monotonic_us INTEGER NOT NULL
) STRICT;

CREATE TABLE thread (
  id TEXT PRIMARY KEY,
  tenant TEXT NOT NULL,
  created_at INTEGER NOT NULL,
  runs INTEGER NOT NULL,
  head_run_id TEXT,
  queued INTEGER NOT NULL CHECK (queued >= 0)
) STRICT;

CREATE TABLE run (
  id TEXT PRIMARY KEY,
  thread_id TEXT NOT NULL,
  number INTEGER NOT NULL,
  tenant TEXT NOT NULL,
  subject TEXT NOT NULL,
  key TEXT,
  fingerprint TEXT NOT NULL,
  agent TEXT NOT NULL,
  input BLOB NOT NULL,
  bindings BLOB NOT NULL,
  parent_id TEXT,
  root_id TEXT NOT NULL,
  status TEXT NOT NULL
    CHECK (status IN ('pending', 'running', 'waiting', 'settling', 'completed', 'cancelled', 'failed')),
  fence INTEGER NOT NULL CHECK (fence >= 0),
  worker_id TEXT,
  attempt INTEGER NOT NULL CHECK (attempt >= 0),
  drain_fence INTEGER,
  settle_at INTEGER,
  waits BLOB NOT NULL,
  due_at INTEGER,
  deadline_at INTEGER,
  durability TEXT NOT NULL CHECK (durability IN ('sync', 'async', 'exit')),
  visibility TEXT NOT NULL CHECK (visibility IN ('store_first', 'show_first')),
  budget BLOB NOT NULL,
  created_at INTEGER NOT NULL,
  ended_at INTEGER
) STRICT;

CREATE UNIQUE INDEX run_of_thread ON run (thread_id, number);
CREATE UNIQUE INDEX run_by_key ON run (tenant, key) WHERE key IS NOT NULL;
CREATE INDEX run_of_tenant ON run (tenant, id);
CREATE INDEX run_of_parent ON run (parent_id, id) WHERE parent_id IS NOT NULL;
-- Work: each index holds only the rows that its question may be about, so finished runs slow nothing.
CREATE INDEX run_pending ON run (agent, id) WHERE status = 'pending';
CREATE INDEX run_due ON run (due_at, agent, id) WHERE due_at IS NOT NULL;
CREATE INDEX run_held ON run (worker_id, id) WHERE worker_id IS NOT NULL;
CREATE INDEX run_settling ON run (settle_at, id) WHERE settle_at IS NOT NULL;
CREATE INDEX run_deadline ON run (deadline_at, id) WHERE deadline_at IS NOT NULL AND ended_at IS NULL;

CREATE TABLE attempt (
  run_id TEXT NOT NULL REFERENCES run (id),
  number INTEGER NOT NULL,
  fence INTEGER NOT NULL,
  worker_id TEXT NOT NULL,
  worker_name TEXT NOT NULL,
  opened_at INTEGER NOT NULL,
  closed_at INTEGER,
  "end" TEXT CHECK ("end" IN ('ended', 'parked', 'released', 'expired')),
  PRIMARY KEY (run_id, number)
) STRICT, WITHOUT ROWID;

CREATE TABLE worker (
  id TEXT PRIMARY KEY,
  name TEXT NOT NULL,
  started_at INTEGER NOT NULL,
  lease_expires_at INTEGER NOT NULL,
  is_draining INTEGER NOT NULL CHECK (is_draining IN (0, 1))
) STRICT;

CREATE INDEX worker_lease ON worker (lease_expires_at, id);

CREATE TABLE operation (
  run_id TEXT NOT NULL,
  position TEXT NOT NULL,
  kind TEXT NOT NULL CHECK (kind IN ('step', 'call', 'child', 'timer', 'wait', 'question', 'correction', 'checkpoint')),
  name TEXT NOT NULL,
  fingerprint TEXT NOT NULL,
  arguments BLOB NOT NULL,
  policy TEXT NOT NULL CHECK (policy IN ('pure', 'idempotent', 'probe', 'once')),
  status TEXT NOT NULL CHECK (status IN ('sealed', 'dispatched', 'unknown', 'committed', 'consumed')),
  fence INTEGER NOT NULL,
  sealed_at INTEGER NOT NULL,
  due_at INTEGER,
  result_kind TEXT CHECK (result_kind IN ('ok', 'error', 'given_up')),
  result BLOB,
  settled_at INTEGER,
  reserved BLOB NOT NULL,
  used BLOB NOT NULL,
  tries BLOB NOT NULL,
  ordinal INTEGER PRIMARY KEY,
  UNIQUE (run_id, position)
) STRICT;

CREATE TABLE stream (
  run_id TEXT PRIMARY KEY,
  reserved_seq INTEGER NOT NULL DEFAULT 0,
  frozen_seq INTEGER,
  frozen_exact INTEGER CHECK (frozen_exact IN (0, 1))
) STRICT, WITHOUT ROWID;

-- Not clustered by run: many runs emit at once, and each commit writes every page that it touches.
CREATE TABLE event (
  run_id TEXT NOT NULL,
  seq INTEGER NOT NULL CHECK (seq > 0),
  kind TEXT NOT NULL CHECK (kind IN ('data', 'superseded', 'gap', 'status')),
  channel TEXT NOT NULL,
  namespace TEXT NOT NULL,
  operation TEXT,
  state_bearing INTEGER NOT NULL CHECK (state_bearing IN (0, 1)),
  payload BLOB NOT NULL,
  chain TEXT NOT NULL,
  fence INTEGER NOT NULL,
  emitted_at INTEGER NOT NULL,
  UNIQUE (run_id, seq)
) STRICT;

CREATE TABLE checkpoint (
  id TEXT PRIMARY KEY,
  run_id TEXT NOT NULL,
  thread_id TEXT NOT NULL,
  number INTEGER NOT NULL CHECK (number > 0),
  parent_id TEXT,
  state BLOB NOT NULL,
  covered_seq INTEGER NOT NULL,
  is_final INTEGER NOT NULL CHECK (is_final IN (0, 1)),
  fence INTEGER NOT NULL,
  created_at INTEGER NOT NULL,
  UNIQUE (run_id, number)
) STRICT;

CREATE TABLE occurrence (
  id TEXT PRIMARY KEY,
  run_id TEXT NOT NULL UNIQUE,
  cause TEXT NOT NULL CHECK (cause IN ('completed', 'explicit_cancel', 'transport_interrupted', 'failed')),
  reason TEXT NOT NULL CHECK (reason IN (
    'finished', 'user_cancel', 'parent_cancel', 'superseded', 'client_left', 'agent_error', 'tool_error',
    'replay_mismatch', 'deadline', 'budget', 'process_lost', 'worker_shutdown')),
  actor BLOB NOT NULL,
  text BLOB NOT NULL,
  command_key TEXT NOT NULL,
  mode TEXT NOT NULL CHECK (mode IN ('now', 'after_step')),
  scope TEXT NOT NULL CHECK (scope IN ('run', 'tree')),
  grace_ms INTEGER NOT NULL,
  origin_id TEXT,
  never_started INTEGER NOT NULL CHECK (never_started IN (0, 1)),
  at INTEGER NOT NULL,
  UNIQUE (run_id, id)
) STRICT;

CREATE TABLE outcome (
  id TEXT PRIMARY KEY,
  run_id TEXT NOT NULL UNIQUE,
  occurrence_id TEXT NOT NULL UNIQUE,
  frontier BLOB NOT NULL,
  durability TEXT NOT NULL CHECK (durability IN ('durable', 'partial', 'abandoned')),
  gap BLOB NOT NULL,
  cleanup_attempted INTEGER NOT NULL CHECK (cleanup_attempted IN (0, 1)),
  cleanup_completed INTEGER NOT NULL CHECK (cleanup_completed IN (0, 1)),
  escalated INTEGER NOT NULL CHECK (escalated IN (0, 1)),
  established_by TEXT NOT NULL,
  at INTEGER NOT NULL,
  UNIQUE (run_id, id),
  FOREIGN KEY (run_id, occurrence_id) REFERENCES occurrence (run_id, id)
) STRICT;

-- A receipt names exactly one occurrence and one outcome, both of its own run.
CREATE TABLE receipt (
  id TEXT NOT NULL UNIQUE,
  run_id TEXT NOT NULL UNIQUE,
  thread_id TEXT NOT NULL,
  occurrence_id TEXT NOT NULL,
  outcome_id TEXT NOT NULL,
  previous_digest TEXT,
  digest TEXT NOT NULL,
  published_at INTEGER NOT NULL,
  frontier BLOB NOT NULL,
  body BLOB NOT NULL,
  ordinal INTEGER PRIMARY KEY,
  FOREIGN KEY (run_id, occurrence_id) REFERENCES occurrence (run_id, id),
  FOREIGN KEY (run_id, outcome_id) REFERENCES outcome (run_id, id)
) STRICT;

CREATE INDEX receipt_of_thread ON receipt (thread_id, ordinal);

CREATE TABLE artifact (
  run_id TEXT NOT NULL,
  name TEXT NOT NULL,
  path TEXT NOT NULL,
  digest TEXT NOT NULL,
  bytes INTEGER NOT NULL,
  saved_at INTEGER NOT NULL,
  ordinal INTEGER PRIMARY KEY,
  UNIQUE (run_id, name)
) STRICT;

CREATE TABLE evidence (
  run_id TEXT NOT NULL,
  position TEXT NOT NULL,
  number INTEGER NOT NULL CHECK (number > 0),
  kind TEXT NOT NULL CHECK (kind IN ('late_result', 'late_proposal', 'probe', 'decision', 'contradiction')),
  verdict TEXT NOT NULL CHECK (verdict IN ('happened', 'did_not_happen', 'give_up', 'cannot_tell')),
  actor BLOB NOT NULL,
  body BLOB NOT NULL,
  at INTEGER NOT NULL,
  ordinal INTEGER PRIMARY KEY,
  UNIQUE (run_id, position, number)
) STRICT;

CREATE TABLE outbox (
  id TEXT PRIMARY KEY,
  topic TEXT NOT NULL,
  run_id TEXT NOT NULL,
  body BLOB NOT NULL,
  created_at INTEGER NOT NULL,
  due_at INTEGER NOT NULL,
  attempts INTEGER NOT NULL CHECK (attempts >= 0),
  failure TEXT NOT NULL,
  delivered_at INTEGER
) STRICT;

CREATE INDEX outbox_due ON outbox (due_at, id) WHERE delivered_at IS NULL;

-- Facts are added and never changed, whoever holds the connection.
CREATE TRIGGER event_stays BEFORE UPDATE ON event BEGIN SELECT RAISE(ABORT, 'event is append-only'); END;
CREATE TRIGGER event_remains BEFORE DELETE ON event BEGIN SELECT RAISE(ABORT, 'event is append-only'); END;
CREATE TRIGGER checkpoint_stays BEFORE UPDATE ON checkpoint BEGIN SELECT RAISE(ABORT, 'checkpoint is append-only'); END;
CREATE TRIGGER checkpoint_remains BEFORE DELETE ON checkpoint BEGIN SELECT RAISE(ABORT, 'checkpoint is append-only'); END;
CREATE TRIGGER occurrence_stays BEFORE UPDATE ON occurrence BEGIN SELECT RAISE(ABORT, 'occurrence is append-only'); END;
CREATE TRIGGER occurrence_remains BEFORE DELETE ON occurrence BEGIN SELECT RAISE(ABORT, 'occurrence is append-only'); END;
CREATE TRIGGER outcome_stays BEFORE UPDATE ON outcome BEGIN SELECT RAISE(ABORT, 'outcome is append-only'); END;
CREATE TRIGGER outcome_remains BEFORE DELETE ON outcome BEGIN SELECT RAISE(ABORT, 'outcome is append-only'); END;
CREATE TRIGGER receipt_stays BEFORE UPDATE ON receipt BEGIN SELECT RAISE(ABORT, 'receipt is append-only'); END;
CREATE TRIGGER receipt_remains BEFORE DELETE ON receipt BEGIN SELECT RAISE(ABORT, 'receipt is append-only'); END;
CREATE TRIGGER artifact_stays BEFORE UPDATE ON artifact BEGIN SELECT RAISE(ABORT, 'artifact is append-only'); END;
CREATE TRIGGER artifact_remains BEFORE DELETE ON artifact BEGIN SELECT RAISE(ABORT, 'artifact is append-only'); END;
CREATE TRIGGER evidence_stays BEFORE UPDATE ON evidence BEGIN SELECT RAISE(ABORT, 'evidence is append-only'); END;
CREATE TRIGGER evidence_remains BEFORE DELETE ON evidence BEGIN SELECT RAISE(ABORT, 'evidence is append-only'); END;
