-- name: insert_thread
INSERT INTO thread (id, tenant, created_at, runs, head_run_id, queued)
VALUES (:id, :tenant, :created_at, :runs, :head_run_id, :queued)
ON CONFLICT (id) DO NOTHING;

-- name: get_thread
SELECT thread.* FROM thread WHERE id = :id;

-- name: lock_thread
SELECT thread.* FROM thread WHERE id = :id;

-- name: save_thread
UPDATE thread SET tenant = :tenant, runs = :runs, head_run_id = :head_run_id, queued = :queued WHERE id = :id;

-- name: enqueue_run
INSERT INTO queued_run (run_id, thread_id, number) VALUES (:run_id, :thread_id, :number);

-- name: queued_runs
SELECT run_id FROM queued_run WHERE thread_id = :thread_id ORDER BY number LIMIT :limit;

-- name: dequeue_run
DELETE FROM queued_run WHERE run_id = :run_id AND thread_id = :thread_id;
