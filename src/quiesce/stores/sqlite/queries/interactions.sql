-- name: add_interaction
-- No row comes back if a question stands at this place already.
INSERT INTO interaction (id, run_id, position, thread_id, tenant, prompt, schema, about, created_at, expires_at, status)
VALUES (:id, :run_id, :position, :thread_id, :tenant, :prompt, :schema, :about, :created_at, :expires_at, 'open')
ON CONFLICT DO NOTHING
RETURNING id;

-- name: get_interaction
SELECT interaction.* FROM interaction WHERE id = :id;

-- name: interaction_at
SELECT interaction.* FROM interaction WHERE run_id = :run_id AND position = :position;

-- name: interactions_of_run
SELECT interaction.* FROM interaction WHERE run_id = :run_id ORDER BY id;

-- name: open_interactions
SELECT interaction.* FROM interaction WHERE tenant = :tenant AND status = 'open' AND id > :after ORDER BY id LIMIT :limit;

-- name: due_interactions
SELECT interaction.* FROM interaction WHERE status = 'open' AND expires_at <= :now ORDER BY expires_at, id LIMIT :limit;

-- name: end_interaction
UPDATE interaction
   SET status = :status, answer = :answer, answer_key = :answer_key, ended_by = :ended_by, ended_at = :ended_at
 WHERE id = :id AND status = 'open'
RETURNING id;
