-- What reaches a run from outside, each once: wakes that it waits for by name, and a person's corrections.

CREATE TABLE mailbox (
  id text COLLATE "C" PRIMARY KEY,
  run_id text COLLATE "C" NOT NULL,
  number bigint NOT NULL CHECK (number > 0),
  kind text NOT NULL CHECK (kind IN ('wake', 'correction')),
  name text COLLATE "C" NOT NULL,
  key text COLLATE "C" NOT NULL,
  subject text COLLATE "C" NOT NULL,
  body bytea NOT NULL,
  arrived_at bigint NOT NULL,
  status text NOT NULL CHECK (status IN ('queued', 'applied', 'withdrawn', 'returned')),
  position text COLLATE "C",
  checkpoint_id text COLLATE "C",
  receipt_id text COLLATE "C",
  ended_at bigint,
  CHECK ((status = 'queued') = (ended_at IS NULL)),
  CHECK ((status = 'applied') = (position IS NOT NULL)),
  CHECK ((status = 'returned') = (receipt_id IS NOT NULL))
);

CREATE UNIQUE INDEX mailbox_of_run ON mailbox (run_id, number);
CREATE UNIQUE INDEX mailbox_by_key ON mailbox (run_id, kind, key);
-- Work: only what is still queued, so a long conversation slows nothing.
CREATE INDEX mailbox_queued ON mailbox (run_id, kind, name, number) WHERE status = 'queued';

CREATE TRIGGER mailbox_sealed BEFORE UPDATE OF id, run_id, number, kind, name, key, subject, body, arrived_at
  ON mailbox FOR EACH ROW
  EXECUTE FUNCTION refuse('is sealed');
CREATE TRIGGER mailbox_moves BEFORE UPDATE ON mailbox FOR EACH ROW
  WHEN (OLD.status <> 'queued')
  EXECUTE FUNCTION refuse('does not change its state like this');
CREATE TRIGGER mailbox_stays BEFORE DELETE ON mailbox FOR EACH ROW
  WHEN (OLD.status = 'queued')
  EXECUTE FUNCTION refuse('is not deleted before it has ended');
CREATE TRIGGER mailbox_remains BEFORE TRUNCATE ON mailbox FOR EACH STATEMENT
  EXECUTE FUNCTION refuse('is not deleted before it has ended');
