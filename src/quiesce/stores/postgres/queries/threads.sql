-- name: insert_thread
INSERT INTO thread (id, tenant, created_at, runs, head_run_id)
VALUES (:id, :tenant, :created_at, :runs, :head_run_id)
ON CONFLICT (id) DO NOTHING;

-- name: get_thread
SELECT thread.* FROM thread WHERE id = :id;

-- name: lock_thread
SELECT thread.* FROM thread WHERE id = :id FOR NO KEY UPDATE;

-- name: save_thread
UPDATE thread SET tenant = :tenant, runs = :runs, head_run_id = :head_run_id WHERE id = :id;
