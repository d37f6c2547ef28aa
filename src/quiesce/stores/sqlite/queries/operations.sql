-- name: put_operations
-- A row that holds a result is never replaced; the ordinal of a position is that of its first row.
INSERT INTO operation (
  run_id, position, kind, name, fingerprint, arguments, policy, status, fence, sealed_at, due_at,
  result_kind, result, settled_at, reserved, used, tries)
VALUES (
  :run_id, :position, :kind, :name, :fingerprint, :arguments, :policy, :status, :fence, :sealed_at, :due_at,
  :result_kind, :result, :settled_at, :reserved, :used, :tries)
ON CONFLICT (run_id, position) DO UPDATE
   SET kind = excluded.kind, name = excluded.name, fingerprint = excluded.fingerprint, arguments = excluded.arguments,
       policy = excluded.policy, status = excluded.status, fence = excluded.fence, sealed_at = excluded.sealed_at,
       due_at = excluded.due_at, result_kind = excluded.result_kind, result = excluded.result,
       settled_at = excluded.settled_at, reserved = excluded.reserved, used = excluded.used, tries = excluded.tries
 WHERE operation.status NOT IN ('committed', 'consumed');

-- name: consume_operations
UPDATE operation SET status = 'consumed' WHERE run_id = :run_id AND position = :position AND status = 'committed';

-- name: get_operation
SELECT operation.* FROM operation WHERE run_id = :run_id AND position = :position;

-- name: get_operations
SELECT operation.* FROM operation WHERE run_id = :run_id AND position = :position;

-- name: operations_of_run
SELECT operation.* FROM operation WHERE run_id = :run_id ORDER BY ordinal;

-- name: unresolved_operations
-- Calls whose outside effect may have happened: `Operation.may_have_acted`.
SELECT operation.* FROM operation
 WHERE run_id IN (SELECT value FROM json_each(:run_id))
   AND status IN ('dispatched', 'unknown') AND kind = 'call' AND policy <> 'pure'
 ORDER BY ordinal;
