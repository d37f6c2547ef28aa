-- name: open_stream
INSERT INTO stream (run_id) VALUES (:run_id);

-- name: stream_states
-- The end of a stream is its last event.
SELECT stream.run_id, event.seq, event.chain, stream.reserved_seq, stream.frozen_seq, stream.frozen_exact
  FROM stream
  LEFT JOIN event ON event.run_id = stream.run_id
   AND event.seq = (SELECT max(last.seq) FROM event AS last WHERE last.run_id = stream.run_id)
 WHERE stream.run_id IN (SELECT value FROM json_each(:run_id));

-- name: glances
SELECT run.id, (SELECT max(event.seq) FROM event WHERE event.run_id = run.id), run.status, run.fence, run.waits
  FROM run
 WHERE run.id IN (SELECT value FROM json_each(:run_id));

-- name: append_events
-- A number that is taken, and a ledger that was never opened, show in the number of rows.
INSERT INTO event (run_id, seq, kind, channel, namespace, operation, state_bearing, payload, chain, fence, emitted_at)
SELECT :run_id, :seq, :kind, :channel, :namespace, :operation, :state_bearing, :payload, :chain, :fence, :emitted_at
 WHERE EXISTS (SELECT 1 FROM stream WHERE stream.run_id = :run_id)
ON CONFLICT (run_id, seq) DO NOTHING;

-- name: events_at
SELECT run_id, seq, chain FROM event WHERE run_id = :run_id AND seq = :seq;

-- name: reserve_numbers
UPDATE stream SET reserved_seq = max(reserved_seq, :upto) WHERE run_id = :run_id;

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
