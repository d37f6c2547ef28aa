-- The durable control channel: sealed intents, the deliveries of commands, their targets, and the room of their scopes.
-- A command keeps only what its order, its claims and its state need; its content stays where it was sealed, in `intent`.

CREATE TABLE intent (
  id TEXT NOT NULL UNIQUE,
  tenant TEXT NOT NULL,
  scope TEXT NOT NULL,
  producer TEXT NOT NULL,
  producer_key TEXT NOT NULL,
  subject TEXT NOT NULL,
  owner TEXT NOT NULL,
  target_id TEXT NOT NULL,
  revision INTEGER NOT NULL CHECK (revision >= 0),
  kind TEXT NOT NULL,
  version INTEGER NOT NULL CHECK (version >= 1),
  is_barrier INTEGER NOT NULL CHECK (is_barrier IN (0, 1)),
  overtakes INTEGER NOT NULL CHECK (overtakes IN (0, 1)),
  payload BLOB NOT NULL,
  due_at INTEGER NOT NULL,
  not_after INTEGER,
  staged_at INTEGER NOT NULL,
  status TEXT NOT NULL CHECK (status IN ('staged', 'relayed', 'withdrawn', 'expired')),
  ended_at INTEGER,
  ordinal INTEGER PRIMARY KEY,
  CHECK ((status = 'staged') = (ended_at IS NULL))
) STRICT;

CREATE UNIQUE INDEX intent_by_key ON intent (tenant, producer, producer_key);
-- Work: only what is still staged, so intents that ended slow nothing.
CREATE INDEX intent_due ON intent (due_at, ordinal) WHERE status = 'staged';
CREATE INDEX intent_staged ON intent (tenant, staged_at, ordinal) WHERE status = 'staged';

CREATE TABLE command (
  event_id TEXT PRIMARY KEY,
  intent_id TEXT NOT NULL UNIQUE REFERENCES intent (id),
  number INTEGER NOT NULL CHECK (number > 0),
  accepted_at INTEGER NOT NULL,
  status TEXT NOT NULL
    CHECK (status IN ('pending', 'claimed', 'unknown', 'quarantined', 'settled', 'discarded', 'expired')),
  claimable_at INTEGER,
  fence INTEGER NOT NULL CHECK (fence >= 0),
  worker_id TEXT,
  expires_at INTEGER,
  started_fence INTEGER,
  is_uncertain INTEGER NOT NULL CHECK (is_uncertain IN (0, 1)),
  attempts INTEGER NOT NULL CHECK (attempts >= 0),
  failures INTEGER NOT NULL CHECK (failures >= 0),
  reason BLOB NOT NULL,
  ended_at INTEGER,
  tenant TEXT NOT NULL,
  scope TEXT NOT NULL,
  owner TEXT NOT NULL,
  target_id TEXT NOT NULL,
  kind TEXT NOT NULL,
  version INTEGER NOT NULL,
  revision INTEGER NOT NULL,
  is_barrier INTEGER NOT NULL CHECK (is_barrier IN (0, 1)),
  CHECK ((status IN ('settled', 'discarded', 'expired')) = (ended_at IS NOT NULL)),
  CHECK ((status = 'claimed') = (worker_id IS NOT NULL AND expires_at IS NOT NULL)),
  CHECK (ended_at IS NULL OR claimable_at IS NULL)
) STRICT;

CREATE UNIQUE INDEX command_of_target ON command (owner, target_id, number);
CREATE INDEX command_of_tenant ON command (tenant, status, event_id);
-- Work: a claim steps from scope to scope of what it understands, and within one begins with what has waited longest.
CREATE INDEX command_claimable ON command (owner, kind, version, tenant, scope, claimable_at, event_id)
 WHERE claimable_at IS NOT NULL;
CREATE INDEX command_due ON command (claimable_at) WHERE claimable_at IS NOT NULL;
-- What an ordinary later command of the target may have to wait for: `Command.is_in_the_way`, whatever its revision.
CREATE INDEX command_in_the_way ON command (owner, target_id, number)
 WHERE ended_at IS NULL AND (is_barrier OR NOT (is_uncertain OR status IN ('unknown', 'quarantined')));

CREATE TABLE target (
  owner TEXT NOT NULL,
  id TEXT NOT NULL,
  revision INTEGER NOT NULL CHECK (revision >= 0),
  last_number INTEGER NOT NULL CHECK (last_number >= 0),
  PRIMARY KEY (owner, id)
) STRICT;

CREATE TABLE scope (
  tenant TEXT NOT NULL,
  scope TEXT NOT NULL,
  bound INTEGER NOT NULL CHECK (bound >= 0),
  reserve INTEGER NOT NULL CHECK (reserve >= 0),
  used INTEGER NOT NULL CHECK (used >= 0),
  PRIMARY KEY (tenant, scope)
) STRICT;

CREATE TABLE settlement (
  event_id TEXT PRIMARY KEY REFERENCES command (event_id),
  admission_id TEXT NOT NULL,
  command_key TEXT NOT NULL,
  verdict TEXT NOT NULL CHECK (verdict IN ('accepted', 'rejected')),
  reason BLOB NOT NULL,
  effect_ref BLOB NOT NULL,
  admitted_at INTEGER NOT NULL,
  fence INTEGER NOT NULL,
  at INTEGER NOT NULL
) STRICT;

CREATE TABLE command_history (
  event_id TEXT NOT NULL,
  what TEXT NOT NULL CHECK (what IN (
    'relayed', 'claimed', 'started', 'deferred', 'unknown', 'quarantined', 'requeued', 'reconciling', 'settled',
    'discarded', 'expired')),
  fence INTEGER NOT NULL,
  "by" BLOB NOT NULL,
  reason BLOB NOT NULL,
  at INTEGER NOT NULL,
  ordinal INTEGER PRIMARY KEY
) STRICT;

CREATE INDEX history_of_command ON command_history (event_id, ordinal);

CREATE TABLE admission_receipt (
  id TEXT PRIMARY KEY,
  command_key TEXT NOT NULL UNIQUE,
  verdict TEXT NOT NULL CHECK (verdict IN ('accepted', 'rejected')),
  reason BLOB NOT NULL,
  effect_ref BLOB NOT NULL,
  at INTEGER NOT NULL
) STRICT;

-- What was sealed stays as it was, a state changes as the domain says and no other way, and what is not finished is not
-- deleted, whoever holds the connection.
CREATE TRIGGER intent_sealed BEFORE UPDATE OF
  id, tenant, scope, producer, producer_key, subject, owner, target_id, revision, kind, version, is_barrier, overtakes,
  payload, due_at, not_after, staged_at
  ON intent
  BEGIN SELECT RAISE(ABORT, 'intent is sealed'); END;
CREATE TRIGGER intent_moves BEFORE UPDATE ON intent
  WHEN OLD.status || ' ' || NEW.status NOT IN (
    'staged staged', 'staged relayed', 'staged withdrawn', 'staged expired')
  BEGIN SELECT RAISE(ABORT, 'intent does not change its state like this'); END;
CREATE TRIGGER intent_stays BEFORE DELETE ON intent
  WHEN OLD.ended_at IS NULL
  BEGIN SELECT RAISE(ABORT, 'intent is not deleted before it has ended'); END;
CREATE TRIGGER command_sealed BEFORE UPDATE OF
  event_id, intent_id, number, accepted_at, tenant, scope, owner, target_id, kind, version, revision, is_barrier
  ON command
  BEGIN SELECT RAISE(ABORT, 'command is sealed'); END;
CREATE TRIGGER command_moves BEFORE UPDATE ON command
  WHEN OLD.status || ' ' || NEW.status NOT IN (
    'pending pending', 'pending claimed', 'pending quarantined', 'pending settled', 'pending discarded', 'pending expired',
    'claimed claimed', 'claimed pending', 'claimed unknown', 'claimed quarantined', 'claimed settled',
    'claimed discarded', 'claimed expired',
    'unknown unknown', 'unknown claimed', 'unknown quarantined', 'unknown settled',
    'quarantined quarantined', 'quarantined pending', 'quarantined unknown', 'quarantined settled')
  BEGIN SELECT RAISE(ABORT, 'command does not change its state like this'); END;
CREATE TRIGGER command_keeps BEFORE UPDATE ON command
  WHEN NEW.fence < OLD.fence OR (OLD.is_uncertain AND NOT NEW.is_uncertain)
  BEGIN SELECT RAISE(ABORT, 'command keeps its fence and its uncertainty'); END;
CREATE TRIGGER command_stays BEFORE DELETE ON command
  WHEN OLD.ended_at IS NULL
  BEGIN SELECT RAISE(ABORT, 'command is not deleted before it has ended'); END;
CREATE TRIGGER settlement_stays BEFORE UPDATE ON settlement BEGIN SELECT RAISE(ABORT, 'settlement is append-only'); END;
CREATE TRIGGER settlement_remains BEFORE DELETE ON settlement BEGIN SELECT RAISE(ABORT, 'settlement is append-only'); END;
CREATE TRIGGER command_history_stays BEFORE UPDATE ON command_history
  BEGIN SELECT RAISE(ABORT, 'command_history is append-only'); END;
CREATE TRIGGER command_history_remains BEFORE DELETE ON command_history
  BEGIN SELECT RAISE(ABORT, 'command_history is append-only'); END;
CREATE TRIGGER admission_receipt_stays BEFORE UPDATE ON admission_receipt
  BEGIN SELECT RAISE(ABORT, 'admission_receipt is append-only'); END;
CREATE TRIGGER admission_receipt_remains BEFORE DELETE ON admission_receipt
  BEGIN SELECT RAISE(ABORT, 'admission_receipt is append-only'); END;
