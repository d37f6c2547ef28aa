-- name: insert_schedule
-- A name is taken by one schedule that is not deleted; another transaction that takes it is waited for.
INSERT INTO schedule (id, tenant, name, created_at, subject, definition, revision, status, next_at, changed_at)
VALUES (:id, :tenant, :name, :created_at, :subject, :definition, :revision, :status, :next_at, :changed_at)
ON CONFLICT (tenant, name) WHERE status <> 'deleted' DO NOTHING;

-- name: get_schedule
SELECT schedule.* FROM schedule WHERE id = :id;

-- name: lock_schedule
SELECT schedule.* FROM schedule WHERE id = :id FOR NO KEY UPDATE;

-- name: schedule_by_name
SELECT schedule.* FROM schedule WHERE tenant = :tenant AND name = :name AND status <> 'deleted';

-- name: save_schedule
UPDATE schedule
   SET subject = :subject, definition = :definition, revision = :revision, status = :status, next_at = :next_at,
       changed_at = :changed_at
 WHERE id = :id;

-- name: page_of_schedules
SELECT schedule.* FROM schedule
 WHERE tenant = :tenant AND name > :after AND status <> 'deleted' ORDER BY name LIMIT :limit;

-- name: count_schedules
SELECT count(*) FROM schedule WHERE tenant = :tenant AND status <> 'deleted';

-- name: add_fires
INSERT INTO fire (schedule_id, planned, status, fired_at, stands_for, count, is_exact, run_id, reason)
SELECT * FROM unnest(
  :schedule_id::text[], :planned::bigint[], :status::text[], :fired_at::bigint[], :stands_for::bytea[], :count::bigint[],
  :is_exact::boolean[], :run_id::text[], :reason::bytea[]);

-- name: get_fire
SELECT fire.* FROM fire WHERE schedule_id = :schedule_id AND planned = :planned;

-- name: page_of_fires
SELECT fire.* FROM fire
 WHERE schedule_id = :schedule_id AND (:before::bigint IS NULL OR planned < :before)
 ORDER BY planned DESC LIMIT :limit;

-- name: tally_of_fires
-- What was missed counts by planned instants; what nobody ever began, by its run.
SELECT status, sum(CASE WHEN status = 'missed' THEN count ELSE 1 END) FROM fire
 WHERE schedule_id = :schedule_id GROUP BY status
UNION ALL
SELECT 'expired', count(*) FROM fire JOIN run ON run.id = fire.run_id
 WHERE fire.schedule_id = :schedule_id AND run.attempt = 0 AND run.deadline_at <= coalesce(run.ended_at, :now);
