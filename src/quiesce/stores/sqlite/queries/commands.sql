-- name: create_targets
INSERT INTO target (owner, id, revision, last_number) VALUES (:owner, :id, 0, 0) ON CONFLICT (owner, id) DO NOTHING;

-- name: lock_targets
SELECT target.* FROM target WHERE owner = :owner AND id = :id;

-- name: get_targets
SELECT target.* FROM target WHERE owner = :owner AND id = :id;

-- name: save_targets
UPDATE target SET revision = :revision, last_number = :last_number WHERE owner = :owner AND id = :id;

-- name: insert_commands
-- What a claim and an order need of the sealed content is copied from where it was sealed.
INSERT INTO command (
  event_id, intent_id, number, accepted_at, status, claimable_at, fence, worker_id, expires_at, started_fence, is_uncertain,
  attempts, failures, reason, ended_at, tenant, scope, owner, target_id, kind, version, revision, is_barrier)
SELECT :event_id, intent.id, :number, :accepted_at, :status, :claimable_at, :fence, :worker_id, :expires_at, :started_fence,
       :is_uncertain, :attempts, :failures, :reason, :ended_at, intent.tenant, intent.scope, intent.owner, intent.target_id,
       intent.kind, intent.version, intent.revision, intent.is_barrier
  FROM intent WHERE intent.id = :intent_id;

-- name: get_command
SELECT command.*, intent.* FROM command JOIN intent ON intent.id = command.intent_id WHERE command.event_id = :event_id;

-- name: command_of_intent
SELECT command.*, intent.* FROM command JOIN intent ON intent.id = command.intent_id WHERE command.intent_id = :intent_id;

-- name: lock_commands
SELECT command.*, intent.* FROM json_each(:event_id) AS given
 CROSS JOIN command ON command.event_id = given.value JOIN intent ON intent.id = command.intent_id;

-- name: save_commands
-- Only what a delivery changes.
UPDATE command
   SET status = :status, claimable_at = :claimable_at, fence = :fence, worker_id = :worker_id, expires_at = :expires_at,
       started_fence = :started_fence, is_uncertain = :is_uncertain, attempts = :attempts, failures = :failures,
       reason = :reason, ended_at = :ended_at
 WHERE event_id = :event_id;

-- name: claimable_scopes
-- Steps through the index from one scope to the next until enough of them have something due: a step costs the same however
-- many commands a scope holds. A lap begins behind `after` and ends with `until`, if any. The next scope is asked for within
-- the tenant and then beyond it: for both at once SQLite would walk over all that stands in the scope it comes from.
WITH RECURSIVE walk (tenant, scope, claimable_at, found) AS (
  SELECT first.tenant, first.scope, first.claimable_at, first.claimable_at <= :now
    FROM command AS first
   WHERE first.event_id = coalesce(
           (SELECT c.event_id FROM command AS c
             WHERE c.owner = :owner AND c.kind = :kind AND c.version = :version AND c.claimable_at IS NOT NULL
               AND c.tenant = :after_tenant AND c.scope > :after_scope
             ORDER BY c.scope, c.claimable_at, c.event_id LIMIT 1),
           (SELECT c.event_id FROM command AS c
             WHERE c.owner = :owner AND c.kind = :kind AND c.version = :version AND c.claimable_at IS NOT NULL
               AND c.tenant > :after_tenant
             ORDER BY c.tenant, c.scope, c.claimable_at, c.event_id LIMIT 1))
     AND (:until_tenant IS NULL OR (first.tenant, first.scope) <= (:until_tenant, :until_scope))
   UNION ALL
  SELECT next.tenant, next.scope, next.claimable_at, walk.found + (next.claimable_at <= :now)
    FROM walk CROSS JOIN command AS next
   WHERE walk.found < :most
     AND next.event_id = coalesce(
           (SELECT c.event_id FROM command AS c
             WHERE c.owner = :owner AND c.kind = :kind AND c.version = :version AND c.claimable_at IS NOT NULL
               AND c.tenant = walk.tenant AND c.scope > walk.scope
             ORDER BY c.scope, c.claimable_at, c.event_id LIMIT 1),
           (SELECT c.event_id FROM command AS c
             WHERE c.owner = :owner AND c.kind = :kind AND c.version = :version AND c.claimable_at IS NOT NULL
               AND c.tenant > walk.tenant
             ORDER BY c.tenant, c.scope, c.claimable_at, c.event_id LIMIT 1))
     AND (:until_tenant IS NULL OR (next.tenant, next.scope) <= (:until_tenant, :until_scope)))
SELECT :owner, :kind, :version, tenant, scope FROM walk WHERE claimable_at <= :now;

-- name: claimable_commands
-- Of each scope the first few, merged by their rank within the scope and then the scope's turn.
WITH
  place (owner, kind, version, tenant, scope, turn) AS MATERIALIZED (
    SELECT json_extract(value, '$.owner'), json_extract(value, '$.kind'), json_extract(value, '$.version'),
           json_extract(value, '$.tenant'), json_extract(value, '$.scope'), json_extract(value, '$.turn')
      FROM json_each(:places)),
  candidate (event_id, turn, rank) AS MATERIALIZED (
    SELECT first.event_id, place.turn,
           row_number() OVER (PARTITION BY place.turn ORDER BY first.claimable_at, first.event_id)
      FROM place CROSS JOIN command AS first
     WHERE first.event_id IN (
       SELECT c.event_id FROM command AS c
        WHERE c.owner = place.owner AND c.kind = place.kind AND c.version = place.version
          AND c.tenant = place.tenant AND c.scope = place.scope AND c.claimable_at <= :now
        ORDER BY c.claimable_at, c.event_id LIMIT :each))
SELECT command.*, intent.* FROM candidate
 CROSS JOIN command ON command.event_id = candidate.event_id
  JOIN intent ON intent.id = command.intent_id
 ORDER BY candidate.rank, candidate.turn LIMIT :limit;

-- name: blocked_targets
-- The first condition is the index's; the second leaves out what is stuck in an incarnation that is over.
SELECT :owner, :id
 WHERE EXISTS (
   SELECT 1 FROM command AS c
    WHERE c.owner = :owner AND c.target_id = :id AND c.ended_at IS NULL
      AND (c.is_barrier OR NOT (c.is_uncertain OR c.status IN ('unknown', 'quarantined')))
      AND (NOT (c.is_uncertain OR c.status IN ('unknown', 'quarantined'))
           OR c.revision >= coalesce((SELECT revision FROM target WHERE target.owner = :owner AND target.id = :id), 0)));

-- name: unblocked_commands
-- A command that waits is in the way itself: it is let through once it is the first that is.
SELECT command.*, intent.* FROM command JOIN intent ON intent.id = command.intent_id
 WHERE command.status = 'pending' AND command.claimable_at IS NULL
   AND command.event_id = (
         SELECT c.event_id FROM command AS c
          WHERE c.owner = :owner AND c.target_id = :id AND c.ended_at IS NULL
            AND (c.is_barrier OR NOT (c.is_uncertain OR c.status IN ('unknown', 'quarantined')))
            AND (NOT (c.is_uncertain OR c.status IN ('unknown', 'quarantined'))
                 OR c.revision >= coalesce((SELECT revision FROM target WHERE target.owner = :owner AND target.id = :id), 0))
          ORDER BY c.number LIMIT 1);

-- name: add_settlements
INSERT INTO settlement (event_id, admission_id, command_key, verdict, reason, effect_ref, admitted_at, fence, at)
VALUES (:event_id, :admission_id, :command_key, :verdict, :reason, :effect_ref, :admitted_at, :fence, :at);

-- name: get_settlement
SELECT settlement.* FROM settlement WHERE event_id = :event_id;

-- name: add_history
INSERT INTO command_history (event_id, what, fence, "by", reason, at) VALUES (:event_id, :what, :fence, :by, :reason, :at);

-- name: history_of_command
SELECT command_history.* FROM command_history WHERE event_id = :event_id ORDER BY ordinal DESC LIMIT :limit;

-- name: page_of_commands
-- Each status has its own stretch of the index, so one that is rare is found without walking over the others.
WITH newest (event_id) AS (
  SELECT found.event_id FROM json_each(:statuses) AS wanted CROSS JOIN command AS found
   WHERE found.event_id IN (
     SELECT c.event_id FROM command AS c
      WHERE c.tenant = :tenant AND c.status = wanted.value AND c.event_id < :before
      ORDER BY c.event_id DESC LIMIT :limit)
   ORDER BY found.event_id DESC LIMIT :limit)
SELECT command.*, intent.* FROM newest
 CROSS JOIN command ON command.event_id = newest.event_id
  JOIN intent ON intent.id = command.intent_id
 ORDER BY command.event_id DESC;

-- name: counts_of_commands
SELECT status, count(*), min(staged_at) FROM intent WHERE tenant = :tenant AND status = 'staged' GROUP BY status
UNION ALL
SELECT status, count(*), min(accepted_at) FROM command
 WHERE tenant = :tenant AND status IN ('pending', 'claimed', 'unknown', 'quarantined') GROUP BY status
 ORDER BY status;

-- name: next_due_command
SELECT min(at) FROM (
  SELECT min(due_at) AS at FROM intent WHERE due_at > :now AND status = 'staged'
  UNION ALL
  SELECT min(claimable_at) FROM command WHERE claimable_at > :now);
