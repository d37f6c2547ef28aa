-- The durable control channel: sealed intents, the deliveries of commands, their targets, and the room of their scopes.
-- A command keeps only what its order, its claims and its state need; its content stays where it was sealed, in `intent`.

CREATE TABLE intent (
  id text COLLATE "C" PRIMARY KEY,
  tenant text COLLATE "C" NOT NULL,
  scope text COLLATE "C" NOT NULL,
  producer text COLLATE "C" NOT NULL,
  producer_key text COLLATE "C" NOT NULL,
  subject text NOT NULL,
  owner text COLLATE "C" NOT NULL,
  target_id text COLLATE "C" NOT NULL,
  revision bigint NOT NULL CHECK (revision >= 0),
  kind text COLLATE "C" NOT NULL,
  version bigint NOT NULL CHECK (version >= 1),
  is_barrier boolean NOT NULL,
  overtakes boolean NOT NULL,
  payload bytea NOT NULL,
  due_at bigint NOT NULL,
  not_after bigint,
  staged_at bigint NOT NULL,
  status text NOT NULL CHECK (status IN ('staged', 'relayed', 'withdrawn', 'expired')),
  ended_at bigint,
  ordinal bigint GENERATED ALWAYS AS IDENTITY,
  CHECK ((status = 'staged') = (ended_at IS NULL))
);

CREATE UNIQUE INDEX intent_by_key ON intent (tenant, producer, producer_key);
-- Work: only what is still staged, so intents that ended slow nothing.
CREATE INDEX intent_due ON intent (due_at, ordinal) WHERE status = 'staged';
CREATE INDEX intent_staged ON intent (tenant, staged_at, ordinal) WHERE status = 'staged';

CREATE TABLE command (
  event_id text COLLATE "C" PRIMARY KEY,
  intent_id text COLLATE "C" NOT NULL UNIQUE REFERENCES intent (id),
  number bigint NOT NULL CHECK (number > 0),
  accepted_at bigint NOT NULL,
  status text NOT NULL
    CHECK (status IN ('pending', 'claimed', 'unknown', 'quarantined', 'settled', 'discarded', 'expired')),
  claimable_at bigint,
  fence bigint NOT NULL CHECK (fence >= 0),
  worker_id text COLLATE "C",
  expires_at bigint,
  started_fence bigint,
  is_uncertain boolean NOT NULL,
  attempts bigint NOT NULL CHECK (attempts >= 0),
  failures bigint NOT NULL CHECK (failures >= 0),
  reason bytea NOT NULL,
  ended_at bigint,
  tenant text COLLATE "C" NOT NULL,
  scope text COLLATE "C" NOT NULL,
  owner text COLLATE "C" NOT NULL,
  target_id text COLLATE "C" NOT NULL,
  kind text COLLATE "C" NOT NULL,
  version bigint NOT NULL,
  revision bigint NOT NULL,
  is_barrier boolean NOT NULL,
  CHECK ((status IN ('settled', 'discarded', 'expired')) = (ended_at IS NOT NULL)),
  CHECK ((status = 'claimed') = (worker_id IS NOT NULL AND expires_at IS NOT NULL)),
  CHECK (ended_at IS NULL OR claimable_at IS NULL)
);

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
  owner text COLLATE "C" NOT NULL,
  id text COLLATE "C" NOT NULL,
  revision bigint NOT NULL CHECK (revision >= 0),
  last_number bigint NOT NULL CHECK (last_number >= 0),
  PRIMARY KEY (owner, id)
);

CREATE TABLE scope (
  tenant text COLLATE "C" NOT NULL,
  scope text COLLATE "C" NOT NULL,
  bound bigint NOT NULL CHECK (bound >= 0),
  reserve bigint NOT NULL CHECK (reserve >= 0),
  used bigint NOT NULL CHECK (used >= 0),
  PRIMARY KEY (tenant, scope)
);

CREATE TABLE settlement (
  event_id text COLLATE "C" PRIMARY KEY REFERENCES command (event_id),
  admission_id text COLLATE "C" NOT NULL,
  command_key text COLLATE "C" NOT NULL,
  verdict text NOT NULL CHECK (verdict IN ('accepted', 'rejected')),
  reason bytea NOT NULL,
  effect_ref bytea NOT NULL,
  admitted_at bigint NOT NULL,
  fence bigint NOT NULL,
  at bigint NOT NULL
);

CREATE TABLE command_history (
  event_id text COLLATE "C" NOT NULL,
  what text NOT NULL CHECK (what IN (
    'relayed', 'claimed', 'started', 'deferred', 'unknown', 'quarantined', 'requeued', 'reconciling', 'settled',
    'discarded', 'expired')),
  fence bigint NOT NULL,
  "by" bytea NOT NULL,
  reason bytea NOT NULL,
  at bigint NOT NULL,
  ordinal bigint GENERATED ALWAYS AS IDENTITY,
  PRIMARY KEY (event_id, ordinal)
);

CREATE TABLE admission_receipt (
  id text COLLATE "C" PRIMARY KEY,
  command_key text COLLATE "C" NOT NULL UNIQUE,
  verdict text NOT NULL CHECK (verdict IN ('accepted', 'rejected')),
  reason bytea NOT NULL,
  effect_ref bytea NOT NULL,
  at bigint NOT NULL
);

-- What was sealed stays as it was, a state changes as the domain says and no other way, and what is not finished is not
-- deleted, whoever holds the connection.
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION '% %', TG_TABLE_NAME, TG_ARGV[0] USING ERRCODE = 'restrict_violation';
END $$;

CREATE TRIGGER intent_sealed BEFORE UPDATE OF
  id, tenant, scope, producer, producer_key, subject, owner, target_id, revision, kind, version, is_barrier, overtakes,
  payload, due_at, not_after, staged_at
  ON intent FOR EACH ROW
  EXECUTE FUNCTION refuse('is sealed');
CREATE TRIGGER intent_moves BEFORE UPDATE ON intent FOR EACH ROW
  WHEN (OLD.status || ' ' || NEW.status NOT IN (
    'staged staged', 'staged relayed', 'staged withdrawn', 'staged expired'))
  EXECUTE FUNCTION refuse('does not change its state like this');
CREATE TRIGGER intent_stays BEFORE DELETE ON intent FOR EACH ROW
  WHEN (OLD.ended_at IS NULL)
  EXECUTE FUNCTION refuse('is not deleted before it has ended');
CREATE TRIGGER intent_remains BEFORE TRUNCATE ON intent FOR EACH STATEMENT
  EXECUTE FUNCTION refuse('is not deleted before it has ended');
CREATE TRIGGER command_sealed BEFORE UPDATE OF
  event_id, intent_id, number, accepted_at, tenant, scope, owner, target_id, kind, version, revision, is_barrier
  ON command FOR EACH ROW
  EXECUTE FUNCTION refuse('is sealed');
CREATE TRIGGER command_moves BEFORE UPDATE ON command FOR EACH ROW
  WHEN (OLD.status || ' ' || NEW.status NOT IN (
    'pending pending', 'pending claimed', 'pending quarantined', 'pending settled', 'pending discarded', 'pending expired',
    'claimed claimed', 'claimed pending', 'claimed unknown', 'claimed quarantined', 'claimed settled',
    'claimed discarded', 'claimed expired',
    'unknown unknown', 'unknown claimed', 'unknown quarantined', 'unknown settled',
    'quarantined quarantined', 'quarantined pending', 'quarantined unknown', 'quarantined settled'))
  EXECUTE FUNCTION refuse('does not change its state like this');
CREATE TRIGGER command_keeps BEFORE UPDATE ON command FOR EACH ROW
  WHEN (NEW.fence < OLD.fence OR (OLD.is_uncertain AND NOT NEW.is_uncertain))
  EXECUTE FUNCTION refuse('keeps its fence and its uncertainty');
CREATE TRIGGER command_stays BEFORE DELETE ON command FOR EACH ROW
  WHEN (OLD.ended_at IS NULL)
  EXECUTE FUNCTION refuse('is not deleted before it has ended');
CREATE TRIGGER command_remains BEFORE TRUNCATE ON command FOR EACH STATEMENT
  EXECUTE FUNCTION refuse('is not deleted before it has ended');
CREATE TRIGGER settlement_stays BEFORE UPDATE OR DELETE ON settlement FOR EACH ROW EXECUTE FUNCTION refuse_change();
CREATE TRIGGER settlement_remains BEFORE TRUNCATE ON settlement FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
CREATE TRIGGER command_history_stays BEFORE UPDATE OR DELETE ON command_history FOR EACH ROW EXECUTE FUNCTION refuse_change();
CREATE TRIGGER command_history_remains BEFORE TRUNCATE ON command_history FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
CREATE TRIGGER admission_receipt_stays BEFORE UPDATE OR DELETE ON admission_receipt FOR EACH ROW EXECUTE FUNCTION refuse_change();
CREATE TRIGGER admission_receipt_remains BEFORE TRUNCATE ON admission_receipt FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
