-- name: add_artifacts
INSERT INTO artifact (run_id, name, path, digest, bytes, saved_at)
SELECT run_id, name, path, digest, bytes, saved_at
  FROM unnest(
         :run_id::text[], :name::text[], :path::text[], :digest::text[], :bytes::bigint[], :saved_at::bigint[])
       WITH ORDINALITY AS new (run_id, name, path, digest, bytes, saved_at, place)
 ORDER BY place
ON CONFLICT (run_id, name) DO NOTHING;

-- name: artifacts_of_runs
SELECT artifact.* FROM artifact WHERE run_id = ANY (:run_id::text[]);

-- name: add_evidence
-- Numbered next of its operation, in the statement itself.
INSERT INTO evidence (run_id, position, number, kind, verdict, actor, body, at)
SELECT :run_id, :position, coalesce(max(number), 0) + 1, :kind, :verdict, :actor, :body, :at
  FROM evidence WHERE run_id = :run_id AND position = :position
RETURNING number;

-- name: evidence_of_run
SELECT evidence.* FROM evidence WHERE run_id = :run_id ORDER BY ordinal;
