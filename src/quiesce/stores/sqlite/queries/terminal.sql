-- name: add_occurrence
-- One per run: the first stands.
INSERT INTO occurrence (
  id, run_id, cause, reason, actor, text, command_key, mode, scope, grace_ms, origin_id, never_started, at)
VALUES (
  :id, :run_id, :cause, :reason, :actor, :text, :command_key, :mode, :scope, :grace_ms, :origin_id, :never_started, :at)
ON CONFLICT (run_id) DO NOTHING;

-- name: occurrences_of_runs
SELECT id, run_id, cause, reason, actor, text, command_key, mode, scope, grace_ms, origin_id, never_started, at
  FROM occurrence WHERE run_id IN (SELECT value FROM json_each(:run_id));

-- name: add_outcome
INSERT INTO outcome (
  id, run_id, occurrence_id, frontier, durability, gap, cleanup_attempted, cleanup_completed, escalated,
  established_by, at)
VALUES (
  :id, :run_id, :occurrence_id, :frontier, :durability, :gap, :cleanup_attempted, :cleanup_completed, :escalated,
  :established_by, :at)
ON CONFLICT (run_id) DO NOTHING;

-- name: outcome_of_occurrence
SELECT id, run_id, occurrence_id, frontier, durability, gap, cleanup_attempted, cleanup_completed, escalated,
       established_by, at
  FROM outcome WHERE occurrence_id = :occurrence_id;

-- name: add_receipt
INSERT INTO receipt (
  id, run_id, thread_id, occurrence_id, outcome_id, previous_digest, digest, published_at, frontier, body)
VALUES (
  :id, :run_id, :thread_id, :occurrence_id, :outcome_id, :previous_digest, :digest, :published_at, :frontier, :body)
ON CONFLICT (run_id) DO NOTHING;

-- name: receipt_of_run
SELECT frontier, body FROM receipt WHERE run_id = :run_id;

-- name: receipt_by_id
SELECT frontier, body FROM receipt WHERE id = :id;

-- name: last_receipt_of_thread
SELECT frontier, body FROM receipt WHERE thread_id = :thread_id ORDER BY ordinal DESC LIMIT 1;
