-- name: add_artifacts
INSERT INTO artifact (run_id, name, path, digest, bytes, saved_at)
VALUES (:run_id, :name, :path, :digest, :bytes, :saved_at)
ON CONFLICT (run_id, name) DO NOTHING;

-- name: artifacts_of_runs
SELECT artifact.* FROM artifact WHERE run_id IN (SELECT value FROM json_each(:run_id));

-- name: add_evidence
-- Numbered next of its operation, in the statement itself.
INSERT INTO evidence (run_id, position, number, kind, verdict, actor, body, at)
SELECT :run_id, :position, coalesce(max(number), 0) + 1, :kind, :verdict, :actor, :body, :at
  FROM evidence WHERE run_id = :run_id AND position = :position
RETURNING number;

-- name: evidence_of_run
SELECT evidence.* FROM evidence WHERE run_id = :run_id ORDER BY ordinal;
