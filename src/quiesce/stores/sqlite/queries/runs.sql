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
-- One writer: a transaction that may write holds every lock.
SELECT run.* FROM run WHERE id = :id;

-- name: lock_runs
SELECT run.* FROM json_each(:id) AS given CROSS JOIN run ON run.id = given.value;

-- name: save_runs
-- Only what the life of a run changes: no index of what is fixed is touched.
UPDATE run
   SET status = :status, fence = :fence, worker_id = :worker_id, attempt = :attempt, drain_fence = :drain_fence,
       settle_at = :settle_at, waits = :waits, due_at = :due_at, budget = :budget, ended_at = :ended_at
 WHERE id = :id;

-- name: run_by_key
SELECT run.* FROM run WHERE tenant = :tenant AND key = :key;

-- name: claimable_runs
-- Three sources, each bounded by its own index: pending runs of each agent, due timers, runs of dead holders. The holders
-- are found by stepping through the index of held runs from one worker to the next, so runs that go well cost nothing.
WITH RECURSIVE
  wanted (agent) AS (SELECT value FROM json_each(:agents)),
  holder (id) AS (
    SELECT min(worker_id) FROM run WHERE worker_id IS NOT NULL
    UNION ALL
    SELECT (SELECT min(worker_id) FROM run WHERE worker_id > holder.id) FROM holder WHERE holder.id IS NOT NULL),
  dead (id) AS (
    SELECT holder.id FROM holder
     WHERE holder.id IS NOT NULL
       AND NOT EXISTS (SELECT 1 FROM worker WHERE worker.id = holder.id AND worker.lease_expires_at > :now)),
  candidate (id) AS (
    SELECT pending.id FROM wanted CROSS JOIN run AS pending
     WHERE pending.id IN (
       SELECT first.id FROM run AS first
        WHERE first.status = 'pending' AND first.agent = wanted.agent ORDER BY first.id LIMIT :reach)
    UNION ALL
    SELECT * FROM (
      SELECT due.id FROM run AS due
       WHERE due.due_at <= :now AND due.status = 'waiting' AND due.agent IN (SELECT agent FROM wanted)
       ORDER BY due.due_at LIMIT :reach)
    UNION ALL
    SELECT * FROM (
      SELECT left_behind.id FROM dead CROSS JOIN run AS left_behind
       WHERE left_behind.worker_id = dead.id AND left_behind.status = 'running'
         AND left_behind.agent IN (SELECT agent FROM wanted)
       LIMIT :reach))
SELECT run.* FROM run WHERE run.id IN (SELECT id FROM candidate) ORDER BY run.id LIMIT :limit;

-- name: unsettled_runs
-- Settling is brief, so this index is small.
SELECT run.* FROM run
 WHERE settle_at IS NOT NULL AND status = 'settling'
   AND (settle_at <= :now OR drain_fence IS NULL
        OR NOT EXISTS (SELECT 1 FROM worker WHERE worker.id = run.worker_id AND worker.lease_expires_at > :now))
 ORDER BY run.id LIMIT :limit;

-- name: overdue_runs
WITH candidate (id) AS (
  SELECT late.id FROM run AS late
   WHERE late.deadline_at <= :now AND late.ended_at IS NULL
     AND (late.status IN ('pending', 'waiting')
          OR (late.status = 'running'
              AND NOT EXISTS (SELECT 1 FROM worker WHERE worker.id = late.worker_id AND worker.lease_expires_at > :now)))
   ORDER BY late.deadline_at LIMIT :reach)
SELECT run.* FROM run WHERE run.id IN (SELECT id FROM candidate) ORDER BY run.id LIMIT :limit;

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
 WHERE tenant = :tenant AND status IN (SELECT value FROM json_each(:statuses)) AND (:before IS NULL OR id < :before)
 ORDER BY id DESC LIMIT :limit;

-- name: next_due
SELECT min(at) FROM (
  SELECT min(due_at) AS at FROM run WHERE due_at > :now AND status = 'waiting'
  UNION ALL
  SELECT min(deadline_at) FROM run WHERE deadline_at > :now AND ended_at IS NULL AND status <> 'settling'
  UNION ALL
  SELECT min(settle_at) FROM run WHERE settle_at > :now AND status = 'settling');

-- name: open_attempt
INSERT INTO attempt (run_id, number, fence, worker_id, worker_name, opened_at, closed_at, "end")
VALUES (:run_id, :number, :fence, :worker_id, :worker_name, :opened_at, :closed_at, :end);

-- name: close_attempt
-- The first recorded end stands.
UPDATE attempt SET "end" = :end, closed_at = :at WHERE run_id = :run_id AND number = :number AND "end" IS NULL;

-- name: attempts_of_run
SELECT attempt.* FROM attempt WHERE run_id = :run_id ORDER BY number;
