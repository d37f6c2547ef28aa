-- Questions of runs to people: what was asked where, and how each ended, once.

CREATE TABLE interaction (
  id text COLLATE "C" PRIMARY KEY,
  run_id text COLLATE "C" NOT NULL,
  position text COLLATE "C" NOT NULL,
  thread_id text COLLATE "C" NOT NULL,
  tenant text COLLATE "C" NOT NULL,
  prompt bytea NOT NULL,
  schema bytea NOT NULL,
  about bytea NOT NULL,
  created_at bigint NOT NULL,
  expires_at bigint,
  status text NOT NULL CHECK (status IN ('open', 'answered', 'expired', 'revoked')),
  answer bytea,
  answer_key text COLLATE "C",
  ended_by bytea,
  ended_at bigint,
  CHECK ((status = 'open') = (ended_at IS NULL)),
  CHECK ((status = 'open') = (ended_by IS NULL)),
  CHECK ((status = 'answered') = (answer IS NOT NULL)),
  CHECK ((status = 'answered') = (answer_key IS NOT NULL)),
  CHECK (status <> 'expired' OR expires_at IS NOT NULL)
);

CREATE UNIQUE INDEX interaction_at ON interaction (run_id, position);
-- Work: only what is still open, so a long history of answers slows nothing.
CREATE INDEX interaction_open ON interaction (tenant, id) WHERE status = 'open';
CREATE INDEX interaction_due ON interaction (expires_at, id) WHERE status = 'open';

CREATE TRIGGER interaction_sealed
  BEFORE UPDATE OF id, run_id, position, thread_id, tenant, prompt, schema, about, created_at, expires_at
  ON interaction FOR EACH ROW
  EXECUTE FUNCTION refuse('is sealed');
CREATE TRIGGER interaction_moves BEFORE UPDATE ON interaction FOR EACH ROW
  WHEN (OLD.status <> 'open')
  EXECUTE FUNCTION refuse('does not change its state like this');
CREATE TRIGGER interaction_stays BEFORE DELETE ON interaction FOR EACH ROW
  WHEN (OLD.status = 'open')
  EXECUTE FUNCTION refuse('is not deleted before it has ended');
CREATE TRIGGER interaction_remains BEFORE TRUNCATE ON interaction FOR EACH STATEMENT
  EXECUTE FUNCTION refuse('is not deleted before it has ended');
