-- What reaches a run from outside, each once: wakes that it waits for by name, and a person's corrections.

CREATE TABLE mailbox (
  id TEXT PRIMARY KEY,
  run_id TEXT NOT NULL,
  number INTEGER NOT NULL CHECK (number > 0),
  kind TEXT NOT NULL CHECK (kind IN ('wake', 'correction')),
  name TEXT NOT NULL,
  key TEXT NOT NULL,
  subject TEXT NOT NULL,
  body BLOB NOT NULL,
  arrived_at INTEGER NOT NULL,
  status TEXT NOT NULL CHECK (status IN ('queued', 'applied', 'withdrawn', 'returned')),
  position TEXT,
  checkpoint_id TEXT,
  receipt_id TEXT,
  ended_at INTEGER,
  CHECK ((status = 'queued') = (ended_at IS NULL)),
  CHECK ((status = 'applied') = (position IS NOT NULL)),
  CHECK ((status = 'returned') = (receipt_id IS NOT NULL))
) STRICT;

CREATE UNIQUE INDEX mailbox_of_run ON mailbox (run_id, number);
CREATE UNIQUE INDEX mailbox_by_key ON mailbox (run_id, kind, key);
-- Work: only what is still queued, so a long conversation slows nothing.
CREATE INDEX mailbox_queued ON mailbox (run_id, kind, name, number) WHERE status = 'queued';

CREATE TRIGGER mailbox_sealed BEFORE UPDATE OF id, run_id, number, kind, name, key, subject, body, arrived_at
  ON mailbox
  BEGIN SELECT RAISE(ABORT, 'mailbox is sealed'); END;
CREATE TRIGGER mailbox_moves BEFORE UPDATE ON mailbox
  WHEN OLD.status <> 'queued'
  BEGIN SELECT RAISE(ABORT, 'mailbox does not change its state like this'); END;
CREATE TRIGGER mailbox_stays BEFORE DELETE ON mailbox
  WHEN OLD.status = 'queued'
  BEGIN SELECT RAISE(ABORT, 'mailbox is not deleted before it has ended'); END;
