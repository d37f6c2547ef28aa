-- name: insert_run
INSERT INTO run (
  id, thread_id, number, tenant, subject, key, fingerprint, agent, input, bindings, parent_id, root_id,
  status, fence, worker_id, attempt, drain_fence, settle_at, waits, due_at, deadline_at,
  durability, visibility, budget, created_at, ended_at)
VALUES (
  :id, :thread_id, :number, :tenant, :subject, :key, :fingerprint, :agent, :input, :bindings, :parent_id, :root_id,
  :status, :fence, :worker_id, :attempt, :drain_fence, :settle_at, :waits, :due_at, :deadline_at,
  :durability, :visibility, :budget, :created_at, :ended_at);

-- name: get_run
SELECT run.* FROM run WHERE id = :id;

-- name: lock_run
SELECT run.* FROM run WHERE id = :id FOR NO KEY UPDATE;

-- name: lock_runs
-- Rows are locked in the order in which they leave the sort: ascending by id, everywhere.
SELECT run.* FROM run WHERE id = ANY (:id::text[]) ORDER BY id FOR NO KEY UPDATE;

-- name: save_runs
-- Only what the life of a run changes: no index of what is fixed is touched.
UPDATE run
   SET status = new.status, fence = new.fence, worker_id = new.worker_id, attempt = new.attempt,
       drain_fence = new.drain_fence, settle_at = new.settle_at, waits = new.waits, due_at = new.due_at,
       budget = new.budget, ended_at = new.ended_at
  FROM unnest(
         :id::text[], :status::text[], :fence::bigint[], :worker_id::text[], :attempt::bigint[], :drain_fence::bigint[],
         :settle_at::bigint[], :waits::bytea[], :due_at::bigint[], :budget::bytea[], :ended_at::bigint[])
       AS new (id, status, fence, worker_id, attempt, drain_fence, settle_at, waits, due_at, budget, ended_at)
 WHERE run.id = new.id;

-- name: run_by_key
SELECT run.* FROM run WHERE tenant = :tenant AND key = :key;

-- name: claimable_runs
-- Three sources, each bounded by its own index: pending runs of each agent, due timers, runs of dead holders. The holders
-- are found by stepping through the index of held runs from one worker to the next, so runs that go well cost nothing.
-- Candidates are read without locks; status and fence are compared again on the row as it is once locked.
WITH RECURSIVE
  wanted (agent) AS (SELECT unnest(:agents::text[])),
  holder (id) AS (
    SELECT min(worker_id) FROM run WHERE worker_id IS NOT NULL
    UNION ALL
    SELECT (SELECT min(worker_id) FROM run WHERE worker_id > holder.id) FROM holder WHERE holder.id IS NOT NULL),
  dead (id) AS (
    SELECT holder.id FROM holder
     WHERE holder.id IS NOT NULL
       AND NOT EXISTS (SELECT 1 FROM worker WHERE worker.id = holder.id AND worker.lease_expires_at > :now)),
  candidate (id, status, fence) AS (
    SELECT pending.* FROM wanted CROSS JOIN LATERAL (
      SELECT first.id, first.status, first.fence FROM run AS first
       WHERE first.status = 'pending' AND first.agent = wanted.agent ORDER BY first.id LIMIT :reach) AS pending
    UNION ALL
    (SELECT due.id, due.status, due.fence FROM run AS due
      WHERE due.due_at <= :now AND due.status = 'waiting' AND due.agent IN (SELECT agent FROM wanted)
      ORDER BY due.due_at LIMIT :reach)
    UNION ALL
    SELECT left_behind.* FROM dead CROSS JOIN LATERAL (
      SELECT held.id, held.status, held.fence FROM run AS held
       WHERE held.worker_id = dead.id AND held.status = 'running' AND held.agent IN (SELECT agent FROM wanted)
       ORDER BY held.id LIMIT :reach) AS left_behind)
SELECT run.* FROM candidate
  JOIN run ON run.id = candidate.id AND run.status = candidate.status AND run.fence = candidate.fence
 ORDER BY run.id LIMIT :limit
   FOR NO KEY UPDATE OF run SKIP LOCKED;

-- name: unsettled_runs
-- Settling is brief, so this index is small.
SELECT run.* FROM run
 WHERE settle_at IS NOT NULL AND status = 'settling'
   AND (settle_at <= :now OR drain_fence IS NULL
        OR NOT EXISTS (SELECT 1 FROM worker WHERE worker.id = run.worker_id AND worker.lease_expires_at > :now))
 ORDER BY run.id LIMIT :limit
   FOR NO KEY UPDATE OF run SKIP LOCKED;

-- name: overdue_runs
WITH candidate (id, status, fence) AS (
  SELECT late.id, late.status, late.fence FROM run AS late
   WHERE late.deadline_at <= :now AND late.ended_at IS NULL
     AND (late.status IN ('pending', 'waiting')
          OR (late.status = 'running'
              AND NOT EXISTS (SELECT 1 FROM worker WHERE worker.id = late.worker_id AND worker.lease_expires_at > :now)))
   ORDER BY late.deadline_at LIMIT :reach)
SELECT run.* FROM candidate
  JOIN run ON run.id = candidate.id AND run.status = candidate.status AND run.fence = candidate.fence
 ORDER BY run.id LIMIT :limit
   FOR NO KEY UPDATE OF run SKIP LOCKED;

-- name: active_children
SELECT run.* FROM run
 WHERE parent_id = :parent_id AND status IN ('pending', 'running', 'waiting') ORDER BY id;

-- name: children
SELECT run.* FROM run WHERE parent_id = :parent_id ORDER BY id;

-- name: held_runs
SELECT run.* FROM run WHERE worker_id = :worker_id AND status IN ('running', 'settling') ORDER BY id;

-- name: runs_of_thread
SELECT run.* FROM run WHERE thread_id = :thread_id ORDER BY number DESC LIMIT :limit;

-- name: page_of_runs
SELECT run.* FROM run
 WHERE tenant = :tenant AND status = ANY (:statuses::text[]) AND (:before::text IS NULL OR id < :before::text)
 ORDER BY id DESC LIMIT :limit;

-- name: next_due
SELECT min(at) FROM (
  SELECT min(due_at) AS at FROM run WHERE due_at > :now AND status = 'waiting'
  UNION ALL
  SELECT min(deadline_at) FROM run WHERE deadline_at > :now AND ended_at IS NULL AND status <> 'settling'
  UNION ALL
  SELECT min(settle_at) FROM run WHERE settle_at > :now AND status = 'settling') AS due;

-- name: open_attempt
INSERT INTO attempt (run_id, number, fence, worker_id, worker_name, opened_at, closed_at, "end")
VALUES (:run_id, :number, :fence, :worker_id, :worker_name, :opened_at, :closed_at, :end);

-- name: close_attempt
-- The first recorded end stands.
UPDATE attempt SET "end" = :end, closed_at = :at WHERE run_id = :run_id AND number = :number AND "end" IS NULL;

-- name: attempts_of_run
SELECT attempt.* FROM attempt WHERE run_id = :run_id ORDER BY number;
