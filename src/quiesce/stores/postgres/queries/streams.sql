-- name: open_stream
INSERT INTO stream (run_id) VALUES (:run_id);

-- name: stream_states
-- The end of a stream is its last event.
SELECT stream.run_id, last.seq, last.chain, stream.reserved_seq, stream.frozen_seq, stream.frozen_exact
  FROM stream
  LEFT JOIN LATERAL (
    SELECT event.seq, event.chain FROM event WHERE event.run_id = stream.run_id ORDER BY event.seq DESC LIMIT 1)
    AS last ON true
 WHERE stream.run_id = ANY (:run_id::text[]);

-- name: glances
SELECT run.id, (SELECT max(event.seq) FROM event WHERE event.run_id = run.id), run.status, run.fence, run.waits
  FROM run
 WHERE run.id = ANY (:run_id::text[]);

-- name: append_events
-- A number that is taken, and a ledger that was never opened, show in the number of rows.
INSERT INTO event (run_id, seq, kind, channel, namespace, operation, state_bearing, payload, chain, fence, emitted_at)
SELECT new.run_id, seq, kind, channel, namespace, operation, state_bearing, payload, chain, fence, emitted_at
  FROM unnest(
         :run_id::text[], :seq::bigint[], :kind::text[], :channel::text[], :namespace::text[], :operation::text[],
         :state_bearing::boolean[], :payload::bytea[], :chain::text[], :fence::bigint[], :emitted_at::bigint[])
       AS new (run_id, seq, kind, channel, namespace, operation, state_bearing, payload, chain, fence, emitted_at)
 WHERE EXISTS (SELECT 1 FROM stream WHERE stream.run_id = new.run_id)
ON CONFLICT (run_id, seq) DO NOTHING;

-- name: events_at
SELECT event.run_id, event.seq, event.chain FROM event
  JOIN unnest(:run_id::text[], :seq::bigint[]) AS given (run_id, seq) USING (run_id, seq);

-- name: reserve_numbers
UPDATE stream SET reserved_seq = greatest(reserved_seq, :upto) WHERE run_id = :run_id;

-- name: freeze_stream
-- The first record stands. One row is changed either way, none only if there is no ledger.
UPDATE stream
   SET frozen_exact = CASE WHEN frozen_seq IS NULL THEN :exact ELSE frozen_exact END,
       frozen_seq = coalesce(frozen_seq, :seq)
 WHERE run_id = :run_id;

-- name: read_events
SELECT event.* FROM event WHERE run_id = :run_id AND seq > :after ORDER BY seq LIMIT :limit;

-- name: count_state_bearing
SELECT count(*) FROM event WHERE run_id = :run_id AND seq > :after AND state_bearing AND kind = 'data';
