-- Schedules, and the receipt of each occurrence that was decided: a schedule and a planned instant.

CREATE TABLE schedule (
  id TEXT PRIMARY KEY,
  tenant TEXT NOT NULL,
  name TEXT NOT NULL,
  created_at INTEGER NOT NULL,
  subject TEXT NOT NULL,
  definition BLOB NOT NULL,
  revision INTEGER NOT NULL CHECK (revision >= 0),
  status TEXT NOT NULL CHECK (status IN ('active', 'paused', 'ended', 'deleted')),
  next_at INTEGER,
  changed_at INTEGER NOT NULL,
  CHECK ((status = 'active') = (next_at IS NOT NULL))
) STRICT;

CREATE UNIQUE INDEX schedule_by_name ON schedule (tenant, name) WHERE status <> 'deleted';

CREATE TABLE fire (
  schedule_id TEXT NOT NULL,
  planned INTEGER NOT NULL,
  status TEXT NOT NULL CHECK (status IN ('fired', 'refused', 'missed')),
  fired_at INTEGER NOT NULL,
  stands_for BLOB NOT NULL,
  count INTEGER NOT NULL CHECK (count > 0),
  is_exact INTEGER NOT NULL CHECK (is_exact IN (0, 1)),
  run_id TEXT,
  reason BLOB NOT NULL,
  PRIMARY KEY (schedule_id, planned),
  CHECK ((status = 'fired') = (run_id IS NOT NULL))
) STRICT;

CREATE TRIGGER schedule_sealed BEFORE UPDATE OF id, tenant, name, created_at ON schedule
  BEGIN SELECT RAISE(ABORT, 'schedule is sealed'); END;
CREATE TRIGGER schedule_moves BEFORE UPDATE ON schedule
  WHEN OLD.status = 'deleted' OR NEW.revision < OLD.revision
  BEGIN SELECT RAISE(ABORT, 'schedule does not change its state like this'); END;
CREATE TRIGGER fire_sealed BEFORE UPDATE ON fire
  BEGIN SELECT RAISE(ABORT, 'fire is sealed'); END;
CREATE TRIGGER schedule_stays BEFORE DELETE ON schedule
  WHEN OLD.status <> 'deleted'
  BEGIN SELECT RAISE(ABORT, 'schedule is not deleted before it has ended'); END;
-- The receipt of an occurrence is what keeps that from being decided again.
CREATE TRIGGER fire_stays BEFORE DELETE ON fire
  WHEN EXISTS (SELECT 1 FROM schedule WHERE id = OLD.schedule_id AND status <> 'deleted')
  BEGIN SELECT RAISE(ABORT, 'fire is not deleted before its schedule has ended'); END;
