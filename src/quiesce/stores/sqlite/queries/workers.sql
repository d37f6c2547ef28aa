-- name: insert_worker
INSERT INTO worker (id, name, started_at, lease_expires_at, is_draining)
VALUES (:id, :name, :started_at, :lease_expires_at, :is_draining);

-- name: get_worker
SELECT worker.* FROM worker WHERE id = :id;

-- name: renew_worker
-- A renewal never shortens a lease, whatever instant it was computed from.
UPDATE worker SET lease_expires_at = max(lease_expires_at, :expires_at) WHERE id = :id;

-- name: drain_worker
UPDATE worker SET is_draining = 1 WHERE id = :id;

-- name: expired_workers
SELECT worker.* FROM worker WHERE lease_expires_at <= :now ORDER BY lease_expires_at, id LIMIT :limit;

-- name: remove_worker
DELETE FROM worker WHERE id = :id;
