-- name: append_message
INSERT INTO outbox (id, topic, run_id, body, created_at, delivered_at)
VALUES (:id, :topic, :run_id, :body, :created_at, :delivered_at)
ON CONFLICT (id) DO NOTHING;

-- name: pending_messages
SELECT outbox.* FROM outbox WHERE delivered_at IS NULL ORDER BY created_at, id LIMIT :limit;

-- name: mark_delivered
UPDATE outbox SET delivered_at = :at WHERE id = :id AND delivered_at IS NULL;
