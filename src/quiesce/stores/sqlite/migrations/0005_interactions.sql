-- Questions of runs to people: what was asked where, and how each ended, once.

CREATE TABLE interaction (
  id TEXT PRIMARY KEY,
  run_id TEXT NOT NULL,
  position TEXT NOT NULL,
  thread_id TEXT NOT NULL,
  tenant TEXT NOT NULL,
  prompt BLOB NOT NULL,
  schema BLOB NOT NULL,
  about BLOB NOT NULL,
  created_at INTEGER NOT NULL,
  expires_at INTEGER,
  status TEXT NOT NULL CHECK (status IN ('open', 'answered', 'expired', 'revoked')),
  answer BLOB,
  answer_key TEXT,
  ended_by BLOB,
  ended_at INTEGER,
  CHECK ((status = 'open') = (ended_at IS NULL)),
  CHECK ((status = 'open') = (ended_by IS NULL)),
  CHECK ((status = 'answered') = (answer IS NOT NULL)),
  CHECK ((status = 'answered') = (answer_key IS NOT NULL)),
  CHECK (status <> 'expired' OR expires_at IS NOT NULL)
) STRICT;

CREATE UNIQUE INDEX interaction_at ON interaction (run_id, position);
-- Work: only what is still open, so a long history of answers slows nothing.
CREATE INDEX interaction_open ON interaction (tenant, id) WHERE status = 'open';
CREATE INDEX interaction_due ON interaction (expires_at, id) WHERE status = 'open';

CREATE TRIGGER interaction_sealed
  BEFORE UPDATE OF id, run_id, position, thread_id, tenant, prompt, schema, about, created_at, expires_at ON interaction
  BEGIN SELECT RAISE(ABORT, 'interaction is sealed'); END;
CREATE TRIGGER interaction_moves BEFORE UPDATE ON interaction
  WHEN OLD.status <> 'open'
  BEGIN SELECT RAISE(ABORT, 'interaction does not change its state like this'); END;
CREATE TRIGGER interaction_stays BEFORE DELETE ON interaction
  WHEN OLD.status = 'open'
  BEGIN SELECT RAISE(ABORT, 'interaction is not deleted before it has ended'); END;
