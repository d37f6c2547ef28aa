-- Schedules, and the receipt of each occurrence that was decided: a schedule and a planned instant.

CREATE TABLE schedule (
  id text COLLATE "C" PRIMARY KEY,
  tenant text COLLATE "C" NOT NULL,
  name text COLLATE "C" NOT NULL,
  created_at bigint NOT NULL,
  subject text COLLATE "C" NOT NULL,
  definition bytea NOT NULL,
  revision bigint NOT NULL CHECK (revision >= 0),
  status text NOT NULL CHECK (status IN ('active', 'paused', 'ended', 'deleted')),
  next_at bigint,
  changed_at bigint NOT NULL,
  CHECK ((status = 'active') = (next_at IS NOT NULL))
);

CREATE UNIQUE INDEX schedule_by_name ON schedule (tenant, name) WHERE status <> 'deleted';

CREATE TABLE fire (
  schedule_id text COLLATE "C" NOT NULL,
  planned bigint NOT NULL,
  status text NOT NULL CHECK (status IN ('fired', 'refused', 'missed')),
  fired_at bigint NOT NULL,
  stands_for bytea NOT NULL,
  count bigint NOT NULL CHECK (count > 0),
  is_exact boolean NOT NULL,
  run_id text COLLATE "C",
  reason bytea NOT NULL,
  PRIMARY KEY (schedule_id, planned),
  CHECK ((status = 'fired') = (run_id IS NOT NULL))
);

CREATE TRIGGER schedule_sealed BEFORE UPDATE OF id, tenant, name, created_at ON schedule FOR EACH ROW
  EXECUTE FUNCTION refuse('is sealed');
CREATE TRIGGER schedule_moves BEFORE UPDATE ON schedule FOR EACH ROW
  WHEN (OLD.status = 'deleted' OR NEW.revision < OLD.revision)
  EXECUTE FUNCTION refuse('does not change its state like this');
CREATE TRIGGER fire_sealed BEFORE UPDATE ON fire FOR EACH ROW
  EXECUTE FUNCTION refuse('is sealed');
CREATE TRIGGER schedule_stays BEFORE DELETE ON schedule FOR EACH ROW
  WHEN (OLD.status <> 'deleted')
  EXECUTE FUNCTION refuse('is not deleted before it has ended');
CREATE TRIGGER schedule_remains BEFORE TRUNCATE ON schedule FOR EACH STATEMENT
  EXECUTE FUNCTION refuse('is not deleted before it has ended');
-- The receipt of an occurrence is what keeps that from being decided again.
CREATE FUNCTION keep_fire() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF EXISTS (SELECT 1 FROM schedule WHERE id = OLD.schedule_id AND status <> 'deleted') THEN
    RAISE EXCEPTION 'fire is not deleted before its schedule has ended' USING ERRCODE = 'restrict_violation';
  END IF;
  RETURN OLD;
END $$;
CREATE TRIGGER fire_stays BEFORE DELETE ON fire FOR EACH ROW
  EXECUTE FUNCTION keep_fire();
CREATE TRIGGER fire_remains BEFORE TRUNCATE ON fire FOR EACH STATEMENT
  EXECUTE FUNCTION refuse('is not deleted before its schedule has ended');
