-- name: add_checkpoints
INSERT INTO checkpoint (
  id, run_id, thread_id, number, parent_id, state, covered_seq, is_final, fence, created_at)
SELECT id, run_id, thread_id, number, parent_id, state, covered_seq, is_final, fence, created_at
  FROM unnest(
         :id::text[], :run_id::text[], :thread_id::text[], :number::bigint[], :parent_id::text[], :state::bytea[],
         :covered_seq::bigint[], :is_final::boolean[], :fence::bigint[], :created_at::bigint[])
       AS new (id, run_id, thread_id, number, parent_id, state, covered_seq, is_final, fence, created_at)
ON CONFLICT (id) DO NOTHING;

-- name: get_checkpoint
SELECT checkpoint.* FROM checkpoint WHERE id = :id;

-- name: last_checkpoint
SELECT checkpoint.* FROM checkpoint WHERE run_id = :run_id ORDER BY number DESC LIMIT 1;

-- name: checkpoints_of_run
SELECT checkpoint.* FROM checkpoint WHERE run_id = :run_id ORDER BY number;
