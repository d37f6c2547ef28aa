-- name: append_message
INSERT INTO outbox (id, topic, run_id, body, created_at, due_at, attempts, failure, delivered_at)
VALUES (:id, :topic, :run_id, :body, :created_at, :due_at, :attempts, :failure, :delivered_at)
ON CONFLICT (id) DO NOTHING;

-- name: pending_messages
SELECT outbox.* FROM outbox WHERE delivered_at IS NULL ORDER BY due_at, id LIMIT :limit;

-- name: claim_messages
UPDATE outbox SET due_at = :until, attempts = attempts + 1
 WHERE id IN (SELECT id FROM outbox WHERE delivered_at IS NULL AND due_at <= :now ORDER BY due_at, id LIMIT :limit)
RETURNING id, topic, run_id, body, created_at, due_at, attempts, failure, delivered_at;

-- name: postpone_message
UPDATE outbox SET due_at = :due_at, failure = :failure
 WHERE id = :id AND attempts = :attempts AND delivered_at IS NULL;

-- name: mark_delivered
UPDATE outbox SET delivered_at = :at WHERE id = :id AND delivered_at IS NULL;
