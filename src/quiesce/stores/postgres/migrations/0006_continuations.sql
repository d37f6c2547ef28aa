-- Threads go on: who is queued behind the head, under which recorded choice each turn was taken, and choices made ahead.

-- Work: a row goes when the run takes its turn or ends.
CREATE TABLE queued_run (
  run_id text COLLATE "C" PRIMARY KEY,
  thread_id text COLLATE "C" NOT NULL,
  number bigint NOT NULL,
  UNIQUE (thread_id, number)
);

-- One per run and one per receipt: no boundary is built on twice.
CREATE TABLE continuation (
  run_id text COLLATE "C" NOT NULL UNIQUE,
  thread_id text COLLATE "C" NOT NULL,
  tenant text COLLATE "C" NOT NULL,
  head_run_id text COLLATE "C" NOT NULL,
  receipt_id text COLLATE "C" NOT NULL UNIQUE REFERENCES receipt (id),
  rule text NOT NULL,
  policy text NOT NULL CHECK (policy IN ('allow', 'reconcile', 'restart')),
  basis text NOT NULL,
  carry text NOT NULL CHECK (carry IN ('checkpoint', 'keep_partial', 'rollback')),
  base_run_id text COLLATE "C",
  gave_up bytea,
  standing bytea,
  actor bytea NOT NULL,
  at bigint NOT NULL,
  ordinal bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  CHECK (carry = 'rollback' OR base_run_id = head_run_id),
  CHECK (carry <> 'keep_partial' OR (policy = 'reconcile' AND gave_up IS NULL))
);

CREATE INDEX continuation_of_thread ON continuation (thread_id, ordinal);

CREATE TABLE standing_policy (
  tenant text COLLATE "C" NOT NULL,
  scope text NOT NULL CHECK (scope IN ('message', 'thread', 'agent')),
  name text COLLATE "C" NOT NULL,
  number bigint NOT NULL CHECK (number > 0),
  on_gap text NOT NULL CHECK (on_gap IN ('block', 'reconcile', 'restart')),
  carry text NOT NULL CHECK (carry IN ('checkpoint', 'keep_partial', 'rollback')),
  declared_by text COLLATE "C" NOT NULL,
  declared_at bigint NOT NULL,
  PRIMARY KEY (tenant, scope, name, number)
);

CREATE TRIGGER continuation_stays BEFORE UPDATE OR DELETE ON continuation FOR EACH ROW EXECUTE FUNCTION refuse_change();
CREATE TRIGGER continuation_remains BEFORE TRUNCATE ON continuation FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
CREATE TRIGGER standing_policy_stays BEFORE UPDATE OR DELETE ON standing_policy FOR EACH ROW EXECUTE FUNCTION refuse_change();
CREATE TRIGGER standing_policy_remains BEFORE TRUNCATE ON standing_policy FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
