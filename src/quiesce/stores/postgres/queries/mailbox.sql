-- name: add_entry
-- Numbered next of its run, in the statement itself; the run is locked. No row comes back if the key names one already.
INSERT INTO mailbox (id, run_id, number, kind, name, key, subject, body, arrived_at, status)
SELECT :id, :run_id, coalesce(max(number), 0) + 1, :kind, :name, :key, :subject, :body, :arrived_at, 'queued'
  FROM mailbox WHERE run_id = :run_id
ON CONFLICT (run_id, kind, key) DO NOTHING
RETURNING number;

-- name: get_entry
SELECT mailbox.* FROM mailbox WHERE id = :id;

-- name: entry_by_key
SELECT mailbox.* FROM mailbox WHERE run_id = :run_id AND kind = :kind AND key = :key;

-- name: queued_entries
SELECT mailbox.* FROM mailbox
 WHERE run_id = :run_id AND kind = :kind AND name = :name AND status = 'queued' ORDER BY number LIMIT :limit;

-- name: count_queued_entries
SELECT count(*) FROM mailbox WHERE run_id = :run_id AND status = 'queued';

-- name: entries_of_run
SELECT mailbox.* FROM mailbox WHERE run_id = :run_id ORDER BY number;

-- name: end_entries
UPDATE mailbox
   SET status = given.status, position = given.position, checkpoint_id = given.checkpoint_id,
       receipt_id = given.receipt_id, ended_at = given.ended_at
  FROM unnest(:id::text[], :status::text[], :position::text[], :checkpoint_id::text[], :receipt_id::text[], :ended_at::bigint[])
       AS given (id, status, position, checkpoint_id, receipt_id, ended_at)
 WHERE mailbox.id = given.id AND mailbox.status = 'queued';

-- name: return_entries
UPDATE mailbox SET status = 'returned', receipt_id = :receipt_id, ended_at = :at WHERE run_id = :run_id AND status = 'queued';
