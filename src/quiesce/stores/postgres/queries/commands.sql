-- name: create_targets
INSERT INTO target (owner, id, revision, last_number)
SELECT owner, id, 0, 0 FROM unnest(:owner::text[], :id::text[]) AS given (owner, id)
 WHERE NOT EXISTS (SELECT 1 FROM target WHERE target.owner = given.owner AND target.id = given.id)
 ORDER BY owner, id
ON CONFLICT (owner, id) DO NOTHING;

-- name: lock_targets
SELECT target.* FROM target
  JOIN unnest(:owner::text[], :id::text[]) AS given (owner, id) USING (owner, id)
 ORDER BY target.owner, target.id FOR NO KEY UPDATE OF target;

-- name: get_targets
SELECT target.* FROM target JOIN unnest(:owner::text[], :id::text[]) AS given (owner, id) USING (owner, id);

-- name: save_targets
UPDATE target SET revision = given.revision, last_number = given.last_number
  FROM unnest(:owner::text[], :id::text[], :revision::bigint[], :last_number::bigint[])
       AS given (owner, id, revision, last_number)
 WHERE target.owner = given.owner AND target.id = given.id;

-- name: insert_commands
-- What a claim and an order need of the sealed content is copied from where it was sealed.
INSERT INTO command (
  event_id, intent_id, number, accepted_at, status, claimable_at, fence, worker_id, expires_at, started_fence, is_uncertain,
  attempts, failures, reason, ended_at, tenant, scope, owner, target_id, kind, version, revision, is_barrier)
SELECT given.event_id, intent.id, given.number, given.accepted_at, given.status, given.claimable_at, given.fence,
       given.worker_id, given.expires_at, given.started_fence, given.is_uncertain, given.attempts, given.failures,
       given.reason, given.ended_at, intent.tenant, intent.scope, intent.owner, intent.target_id, intent.kind,
       intent.version, intent.revision, intent.is_barrier
  FROM unnest(
         :event_id::text[], :intent_id::text[], :number::bigint[], :accepted_at::bigint[], :status::text[],
         :claimable_at::bigint[], :fence::bigint[], :worker_id::text[], :expires_at::bigint[], :started_fence::bigint[],
         :is_uncertain::boolean[], :attempts::bigint[], :failures::bigint[], :reason::bytea[], :ended_at::bigint[])
       AS given (
         event_id, intent_id, number, accepted_at, status, claimable_at, fence, worker_id, expires_at, started_fence,
         is_uncertain, attempts, failures, reason, ended_at)
  JOIN intent ON intent.id = given.intent_id;

-- name: get_command
SELECT command.*, intent.* FROM command JOIN intent ON intent.id = command.intent_id WHERE command.event_id = :event_id;

-- name: command_of_intent
SELECT command.*, intent.* FROM command JOIN intent ON intent.id = command.intent_id WHERE command.intent_id = :intent_id;

-- name: lock_commands
-- Rows are locked in the order in which they leave the sort: ascending by id, everywhere.
SELECT command.*, intent.* FROM command JOIN intent ON intent.id = command.intent_id
 WHERE command.event_id = ANY (:event_id::text[])
 ORDER BY command.event_id FOR NO KEY UPDATE OF command;

-- name: save_commands
-- Only what a delivery changes.
UPDATE command
   SET status = new.status, claimable_at = new.claimable_at, fence = new.fence, worker_id = new.worker_id,
       expires_at = new.expires_at, started_fence = new.started_fence, is_uncertain = new.is_uncertain,
       attempts = new.attempts, failures = new.failures, reason = new.reason, ended_at = new.ended_at
  FROM unnest(
         :event_id::text[], :status::text[], :claimable_at::bigint[], :fence::bigint[], :worker_id::text[],
         :expires_at::bigint[], :started_fence::bigint[], :is_uncertain::boolean[], :attempts::bigint[],
         :failures::bigint[], :reason::bytea[], :ended_at::bigint[])
       AS new (
         event_id, status, claimable_at, fence, worker_id, expires_at, started_fence, is_uncertain, attempts, failures,
         reason, ended_at)
 WHERE command.event_id = new.event_id;

-- name: claimable_scopes
-- Steps through the index from one scope to the next, once per consumer and lap, until enough of them have something due:
-- a step costs the same however many commands a scope holds. A lap begins behind `after` and ends with `until`, if any.
WITH RECURSIVE walk (owner, kind, version, until_tenant, until_scope, now, most, tenant, scope, claimable_at, found) AS (
  SELECT given.owner, given.kind, given.version, given.until_tenant, given.until_scope, given.now, given.most,
         first.tenant, first.scope, first.claimable_at, (first.claimable_at <= given.now)::int
    FROM unnest(
           :owner::text[], :kind::text[], :version::bigint[], :after_tenant::text[], :after_scope::text[],
           :until_tenant::text[], :until_scope::text[], :now::bigint[], :most::bigint[])
         AS given (owner, kind, version, after_tenant, after_scope, until_tenant, until_scope, now, most)
   CROSS JOIN LATERAL (
         SELECT c.tenant, c.scope, c.claimable_at FROM command AS c
          WHERE c.owner = given.owner AND c.kind = given.kind AND c.version = given.version
            AND c.claimable_at IS NOT NULL AND (c.tenant, c.scope) > (given.after_tenant, given.after_scope)
          ORDER BY c.tenant, c.scope, c.claimable_at LIMIT 1) AS first
   WHERE given.until_tenant IS NULL OR (first.tenant, first.scope) <= (given.until_tenant, given.until_scope)
   UNION ALL
  SELECT walk.owner, walk.kind, walk.version, walk.until_tenant, walk.until_scope, walk.now, walk.most,
         next.tenant, next.scope, next.claimable_at, walk.found + (next.claimable_at <= walk.now)::int
    FROM walk
   CROSS JOIN LATERAL (
         SELECT c.tenant, c.scope, c.claimable_at FROM command AS c
          WHERE c.owner = walk.owner AND c.kind = walk.kind AND c.version = walk.version
            AND c.claimable_at IS NOT NULL AND (c.tenant, c.scope) > (walk.tenant, walk.scope)
          ORDER BY c.tenant, c.scope, c.claimable_at LIMIT 1) AS next
   WHERE walk.found < walk.most
     AND (walk.until_tenant IS NULL OR (next.tenant, next.scope) <= (walk.until_tenant, walk.until_scope)))
SELECT owner, kind, version, tenant, scope FROM walk WHERE claimable_at <= now;

-- name: claimable_commands
-- Of each scope the first few, merged by their rank within the scope and then the scope's turn. Candidates are read without
-- locks; that one is claimable is asked again of the row as it is once locked, in words that no index seems to answer.
WITH
  place (owner, kind, version, tenant, scope, turn) AS (
    SELECT given.* FROM json_to_recordset(:places::json)
        AS given (owner text, kind text, version bigint, tenant text, scope text, turn bigint)),
  candidate (event_id, turn, rank) AS (
    SELECT first.event_id, place.turn,
           row_number() OVER (PARTITION BY place.turn ORDER BY first.claimable_at, first.event_id)
      FROM place CROSS JOIN LATERAL (
        SELECT c.event_id, c.claimable_at FROM command AS c
         WHERE c.owner = place.owner AND c.kind = place.kind AND c.version = place.version
           AND c.tenant = place.tenant AND c.scope = place.scope AND c.claimable_at <= :now
         ORDER BY c.claimable_at, c.event_id LIMIT :each) AS first)
SELECT command.*, intent.* FROM candidate
  JOIN command ON command.event_id = candidate.event_id AND NOT coalesce(command.claimable_at > :now, true)
  JOIN intent ON intent.id = command.intent_id
 ORDER BY candidate.rank, candidate.turn LIMIT :limit
   FOR NO KEY UPDATE OF command SKIP LOCKED;

-- name: blocked_targets
-- The first condition is the index's; the second leaves out what is stuck in an incarnation that is over.
SELECT given.owner, given.id FROM unnest(:owner::text[], :id::text[]) AS given (owner, id)
 CROSS JOIN LATERAL (
       SELECT 1 FROM command AS c
        WHERE c.owner = given.owner AND c.target_id = given.id AND c.ended_at IS NULL
          AND (c.is_barrier OR NOT (c.is_uncertain OR c.status IN ('unknown', 'quarantined')))
         AND (NOT (c.is_uncertain OR c.status IN ('unknown', 'quarantined'))
              OR c.revision >= coalesce((SELECT target.revision FROM target
                                          WHERE target.owner = given.owner AND target.id = given.id), 0))
        LIMIT 1) AS in_the_way;

-- name: unblocked_commands
-- A command that waits is in the way itself: it is let through once it is the first that is. That it waits is asked again of
-- the row as it is once locked, in words that no index seems to answer.
SELECT command.*, intent.* FROM unnest(:owner::text[], :id::text[]) AS given (owner, id)
 CROSS JOIN LATERAL (
       SELECT c.event_id, c.status, c.claimable_at FROM command AS c
        WHERE c.owner = given.owner AND c.target_id = given.id AND c.ended_at IS NULL
          AND (c.is_barrier OR NOT (c.is_uncertain OR c.status IN ('unknown', 'quarantined')))
         AND (NOT (c.is_uncertain OR c.status IN ('unknown', 'quarantined'))
              OR c.revision >= coalesce((SELECT target.revision FROM target
                                          WHERE target.owner = given.owner AND target.id = given.id), 0))
        ORDER BY c.number LIMIT 1) AS front
  JOIN command ON command.event_id = front.event_id
   AND coalesce(command.status, '') = 'pending' AND num_nulls(command.claimable_at) = 1
  JOIN intent ON intent.id = command.intent_id
 WHERE front.status = 'pending' AND front.claimable_at IS NULL
 ORDER BY command.event_id FOR NO KEY UPDATE OF command;

-- name: add_settlements
INSERT INTO settlement (event_id, admission_id, command_key, verdict, reason, effect_ref, admitted_at, fence, at)
SELECT given.* FROM unnest(
         :event_id::text[], :admission_id::text[], :command_key::text[], :verdict::text[], :reason::bytea[],
         :effect_ref::bytea[], :admitted_at::bigint[], :fence::bigint[], :at::bigint[]) AS given;

-- name: get_settlement
SELECT settlement.* FROM settlement WHERE event_id = :event_id;

-- name: add_history
INSERT INTO command_history (event_id, what, fence, "by", reason, at)
SELECT event_id, what, fence, "by", reason, at
  FROM unnest(:event_id::text[], :what::text[], :fence::bigint[], :by::bytea[], :reason::bytea[], :at::bigint[])
       WITH ORDINALITY AS new (event_id, what, fence, "by", reason, at, place)
 ORDER BY place;

-- name: history_of_command
SELECT command_history.* FROM command_history WHERE event_id = :event_id ORDER BY ordinal DESC LIMIT :limit;

-- name: page_of_commands
-- Each status has its own stretch of the index, so one that is rare is found without walking over the others.
WITH newest (event_id) AS (
  SELECT found.event_id FROM unnest(:statuses::text[]) AS wanted (status)
   CROSS JOIN LATERAL (
         SELECT c.event_id FROM command AS c
          WHERE c.tenant = :tenant AND c.status = wanted.status AND c.event_id < :before
          ORDER BY c.event_id DESC LIMIT :limit) AS found
   ORDER BY found.event_id DESC LIMIT :limit)
SELECT command.*, intent.* FROM newest
  JOIN command ON command.event_id = newest.event_id
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
  SELECT min(claimable_at) FROM command WHERE claimable_at > :now) AS due;
