-- The first schema. Columns stand in the order of the fields they hold; instants are microseconds since 1970.
-- Payloads are bytes of canonical JSON, so that any character JSON can hold is kept (text cannot hold NUL). Ids sort by
-- their bytes, whatever the database's collation: their order is the lock order.

CREATE TABLE thread (
  id text COLLATE "C" PRIMARY KEY,
  tenant text COLLATE "C" NOT NULL,
  created_at bigint NOT NULL,
  runs bigint NOT NULL,
  head_run_id text,
  queued bigint NOT NULL CHECK (queued >= 0)
);

CREATE TABLE run (
  id text COLLATE "C" PRIMARY KEY,
  thread_id text COLLATE "C" NOT NULL,
  number bigint NOT NULL,
  tenant text COLLATE "C" NOT NULL,
  subject text NOT NULL,
  key text,
  fingerprint text NOT NULL,
  agent text COLLATE "C" NOT NULL,
  input bytea NOT NULL,
  bindings bytea NOT NULL,
  parent_id text COLLATE "C",
  root_id text COLLATE "C" NOT NULL,
  status text NOT NULL
    CHECK (status IN ('pending', 'running', 'waiting', 'settling', 'completed', 'cancelled', 'failed')),
  fence bigint NOT NULL CHECK (fence >= 0),
  worker_id text COLLATE "C",
  attempt bigint NOT NULL CHECK (attempt >= 0),
  drain_fence bigint,
  settle_at bigint,
  waits bytea NOT NULL,
  due_at bigint,
  deadline_at bigint,
  durability text NOT NULL CHECK (durability IN ('sync', 'async', 'exit')),
  visibility text NOT NULL CHECK (visibility IN ('store_first', 'show_first')),
  budget bytea NOT NULL,
  created_at bigint NOT NULL,
  ended_at bigint
);

CREATE UNIQUE INDEX run_of_thread ON run (thread_id, number);
CREATE UNIQUE INDEX run_by_key ON run (tenant, key) WHERE key IS NOT NULL;
CREATE INDEX run_of_tenant ON run (tenant, id);
CREATE INDEX run_of_parent ON run (parent_id, id) WHERE parent_id IS NOT NULL;
-- Work: each index holds only the rows that its question may be about, so finished runs slow nothing.
CREATE INDEX run_pending ON run (agent, id) WHERE status = 'pending';
CREATE INDEX run_due ON run (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX run_held ON run (worker_id, id) WHERE worker_id IS NOT NULL;
CREATE INDEX run_settling ON run (settle_at, id) WHERE settle_at IS NOT NULL;
CREATE INDEX run_deadline ON run (deadline_at, id) WHERE deadline_at IS NOT NULL AND ended_at IS NULL;

CREATE TABLE attempt (
  run_id text COLLATE "C" NOT NULL REFERENCES run (id),
  number bigint NOT NULL,
  fence bigint NOT NULL,
  worker_id text COLLATE "C" NOT NULL,
  worker_name text NOT NULL,
  opened_at bigint NOT NULL,
  closed_at bigint,
  "end" text CHECK ("end" IN ('ended', 'parked', 'released', 'expired')),
  PRIMARY KEY (run_id, number)
);

CREATE TABLE worker (
  id text COLLATE "C" PRIMARY KEY,
  name text NOT NULL,
  started_at bigint NOT NULL,
  lease_expires_at bigint NOT NULL,
  is_draining boolean NOT NULL
);

CREATE INDEX worker_lease ON worker (lease_expires_at, id);

CREATE TABLE operation (
  run_id text COLLATE "C" NOT NULL,
  position text COLLATE "C" NOT NULL,
  kind text NOT NULL CHECK (kind IN ('step', 'call', 'child', 'timer', 'wait', 'question', 'correction', 'checkpoint')),
  name text NOT NULL,
  fingerprint text NOT NULL,
  arguments bytea NOT NULL,
  policy text NOT NULL CHECK (policy IN ('pure', 'idempotent', 'probe', 'once')),
  status text NOT NULL CHECK (status IN ('sealed', 'dispatched', 'unknown', 'committed', 'consumed')),
  fence bigint NOT NULL,
  sealed_at bigint NOT NULL,
  due_at bigint,
  result_kind text CHECK (result_kind IN ('ok', 'error', 'given_up')),
  result bytea,
  settled_at bigint,
  reserved bytea NOT NULL,
  used bytea NOT NULL,
  tries bytea NOT NULL,
  ordinal bigint GENERATED ALWAYS AS IDENTITY,
  PRIMARY KEY (run_id, position)
);

CREATE TABLE stream (
  run_id text COLLATE "C" PRIMARY KEY,
  reserved_seq bigint NOT NULL DEFAULT 0,
  frozen_seq bigint,
  frozen_exact boolean
);

CREATE TABLE event (
  run_id text COLLATE "C" NOT NULL,
  seq bigint NOT NULL CHECK (seq > 0),
  kind text NOT NULL CHECK (kind IN ('data', 'superseded', 'gap', 'status')),
  channel text NOT NULL,
  namespace text NOT NULL,
  operation text,
  state_bearing boolean NOT NULL,
  payload bytea NOT NULL,
  chain text NOT NULL,
  fence bigint NOT NULL,
  emitted_at bigint NOT NULL,
  PRIMARY KEY (run_id, seq)
);

CREATE TABLE checkpoint (
  id text COLLATE "C" PRIMARY KEY,
  run_id text COLLATE "C" NOT NULL,
  thread_id text COLLATE "C" NOT NULL,
  number bigint NOT NULL CHECK (number > 0),
  parent_id text COLLATE "C",
  state bytea NOT NULL,
  covered_seq bigint NOT NULL,
  is_final boolean NOT NULL,
  fence bigint NOT NULL,
  created_at bigint NOT NULL,
  UNIQUE (run_id, number)
);

CREATE TABLE occurrence (
  id text COLLATE "C" PRIMARY KEY,
  run_id text COLLATE "C" NOT NULL UNIQUE,
  cause text NOT NULL CHECK (cause IN ('completed', 'explicit_cancel', 'transport_interrupted', 'failed')),
  reason text NOT NULL CHECK (reason IN (
    'finished', 'user_cancel', 'parent_cancel', 'superseded', 'client_left', 'agent_error', 'tool_error',
    'replay_mismatch', 'deadline', 'budget', 'process_lost', 'worker_shutdown')),
  actor bytea NOT NULL,
  text bytea NOT NULL,
  command_key text NOT NULL,
  mode text NOT NULL CHECK (mode IN ('now', 'after_step')),
  scope text NOT NULL CHECK (scope IN ('run', 'tree')),
  grace_ms bigint NOT NULL,
  origin_id text,
  never_started boolean NOT NULL,
  at bigint NOT NULL,
  UNIQUE (run_id, id)
);

CREATE TABLE outcome (
  id text COLLATE "C" PRIMARY KEY,
  run_id text COLLATE "C" NOT NULL UNIQUE,
  occurrence_id text NOT NULL UNIQUE,
  frontier bytea NOT NULL,
  durability text NOT NULL CHECK (durability IN ('durable', 'partial', 'abandoned')),
  gap bytea NOT NULL,
  cleanup_attempted boolean NOT NULL,
  cleanup_completed boolean NOT NULL,
  escalated boolean NOT NULL,
  established_by text NOT NULL,
  at bigint NOT NULL,
  UNIQUE (run_id, id),
  FOREIGN KEY (run_id, occurrence_id) REFERENCES occurrence (run_id, id)
);

-- A receipt names exactly one occurrence and one outcome, both of its own run.
CREATE TABLE receipt (
  id text COLLATE "C" PRIMARY KEY,
  run_id text COLLATE "C" NOT NULL UNIQUE,
  thread_id text COLLATE "C" NOT NULL,
  occurrence_id text NOT NULL,
  outcome_id text NOT NULL,
  previous_digest text,
  digest text NOT NULL,
  published_at bigint NOT NULL,
  frontier bytea NOT NULL,
  body bytea NOT NULL,
  ordinal bigint GENERATED ALWAYS AS IDENTITY,
  FOREIGN KEY (run_id, occurrence_id) REFERENCES occurrence (run_id, id),
  FOREIGN KEY (run_id, outcome_id) REFERENCES outcome (run_id, id)
);

CREATE INDEX receipt_of_thread ON receipt (thread_id, ordinal);

CREATE TABLE artifact (
  run_id text COLLATE "C" NOT NULL,
  name text NOT NULL,
  path text NOT NULL,
  digest text NOT NULL,
  bytes bigint NOT NULL,
  saved_at bigint NOT NULL,
  ordinal bigint GENERATED ALWAYS AS IDENTITY,
  PRIMARY KEY (run_id, name)
);

CREATE TABLE evidence (
  run_id text COLLATE "C" NOT NULL,
  position text COLLATE "C" NOT NULL,
  number bigint NOT NULL CHECK (number > 0),
  kind text NOT NULL CHECK (kind IN ('late_result', 'late_proposal', 'probe', 'decision', 'contradiction')),
  verdict text NOT NULL CHECK (verdict IN ('happened', 'did_not_happen', 'give_up', 'cannot_tell')),
  actor bytea NOT NULL,
  body bytea NOT NULL,
  at bigint NOT NULL,
  ordinal bigint GENERATED ALWAYS AS IDENTITY,
  PRIMARY KEY (run_id, position, number)
);

CREATE TABLE outbox (
  id text COLLATE "C" PRIMARY KEY,
  topic text NOT NULL,
  run_id text COLLATE "C" NOT NULL,
  body bytea NOT NULL,
  created_at bigint NOT NULL,
  due_at bigint NOT NULL,
  attempts bigint NOT NULL CHECK (attempts >= 0),
  failure text NOT NULL,
  delivered_at bigint
);

CREATE INDEX outbox_due ON outbox (due_at, id) WHERE delivered_at IS NULL;

-- Facts are added and never changed, whoever holds the connection.
CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION '% is append-only', TG_TABLE_NAME USING ERRCODE = 'restrict_violation';
END $$;

CREATE TRIGGER event_stays BEFORE UPDATE OR DELETE ON event FOR EACH ROW EXECUTE FUNCTION refuse_change();
CREATE TRIGGER event_remains BEFORE TRUNCATE ON event FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
CREATE TRIGGER checkpoint_stays BEFORE UPDATE OR DELETE ON checkpoint FOR EACH ROW EXECUTE FUNCTION refuse_change();
CREATE TRIGGER checkpoint_remains BEFORE TRUNCATE ON checkpoint FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
CREATE TRIGGER occurrence_stays BEFORE UPDATE OR DELETE ON occurrence FOR EACH ROW EXECUTE FUNCTION refuse_change();
CREATE TRIGGER occurrence_remains BEFORE TRUNCATE ON occurrence FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
CREATE TRIGGER outcome_stays BEFORE UPDATE OR DELETE ON outcome FOR EACH ROW EXECUTE FUNCTION refuse_change();
CREATE TRIGGER outcome_remains BEFORE TRUNCATE ON outcome FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
CREATE TRIGGER receipt_stays BEFORE UPDATE OR DELETE ON receipt FOR EACH ROW EXECUTE FUNCTION refuse_change();
CREATE TRIGGER receipt_remains BEFORE TRUNCATE ON receipt FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
CREATE TRIGGER artifact_stays BEFORE UPDATE OR DELETE ON artifact FOR EACH ROW EXECUTE FUNCTION refuse_change();
CREATE TRIGGER artifact_remains BEFORE TRUNCATE ON artifact FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
CREATE TRIGGER evidence_stays BEFORE UPDATE OR DELETE ON evidence FOR EACH ROW EXECUTE FUNCTION refuse_change();
CREATE TRIGGER evidence_remains BEFORE TRUNCATE ON evidence FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
