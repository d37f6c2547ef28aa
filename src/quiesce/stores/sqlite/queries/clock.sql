-- name: get_anchor
SELECT boot_id, wall_us, monotonic_us FROM clock_anchor;

-- name: put_anchor
INSERT INTO clock_anchor (only, boot_id, wall_us, monotonic_us) VALUES (1, :boot_id, :wall_us, :monotonic_us)
ON CONFLICT (only) DO UPDATE
   SET boot_id = excluded.boot_id, wall_us = excluded.wall_us, monotonic_us = excluded.monotonic_us;

-- name: latest_instant
-- An instant not before any that the store has given out, cheaply: workers renew leases that lie ahead of them.
SELECT max(at) FROM (
  SELECT max(lease_expires_at) AS at FROM worker
  UNION ALL
  SELECT created_at FROM run WHERE id = (SELECT max(id) FROM run)
  UNION ALL
  SELECT at FROM command_history WHERE ordinal = (SELECT max(ordinal) FROM command_history)
  UNION ALL
  SELECT staged_at FROM intent WHERE id = (SELECT max(id) FROM intent)
  UNION ALL
  SELECT published_at FROM receipt WHERE ordinal = (SELECT max(ordinal) FROM receipt)
  UNION ALL
  SELECT wall_us FROM clock_anchor);
