-- name: intent_by_key
SELECT intent.* FROM intent WHERE tenant = :tenant AND producer = :producer AND producer_key = :producer_key;

-- name: insert_intent
INSERT INTO intent (
  id, tenant, scope, producer, producer_key, subject, owner, target_id, revision, kind, version, is_barrier, overtakes,
  payload, due_at, not_after, staged_at, status, ended_at)
VALUES (
  :id, :tenant, :scope, :producer, :producer_key, :subject, :owner, :target_id, :revision, :kind, :version, :is_barrier,
  :overtakes, :payload, :due_at, :not_after, :staged_at, :status, :ended_at)
ON CONFLICT (tenant, producer, producer_key) DO NOTHING;

-- name: get_intent
SELECT intent.* FROM intent WHERE id = :id;

-- name: lock_intent
SELECT intent.* FROM intent WHERE id = :id;

-- name: due_intents
SELECT intent.* FROM intent WHERE status = 'staged' AND due_at <= :now ORDER BY due_at, ordinal LIMIT :limit;

-- name: staged_intents
SELECT intent.* FROM intent
 WHERE tenant = :tenant AND status = 'staged' ORDER BY staged_at DESC, ordinal DESC LIMIT :limit;

-- name: end_intents
UPDATE intent SET status = :status, ended_at = :at WHERE id = :id;

-- name: take_place
-- A scope that nobody knows yet is made with its first place taken, unless its bound has room for none.
INSERT INTO scope (tenant, scope, bound, reserve, used)
SELECT :tenant, :scope, :bound, :reserve, 1
 WHERE :bound + CASE WHEN :overtakes THEN :reserve ELSE 0 END > 0
    OR EXISTS (SELECT 1 FROM scope WHERE tenant = :tenant AND scope = :scope)
ON CONFLICT (tenant, scope) DO UPDATE SET used = scope.used + 1
 WHERE scope.used < scope.bound + CASE WHEN :overtakes THEN scope.reserve ELSE 0 END;

-- name: give_back
UPDATE scope SET used = used - :places WHERE tenant = :tenant AND scope = :scope;

-- name: get_capacity
SELECT scope.* FROM scope WHERE tenant = :tenant AND scope = :scope;

-- name: capacities
SELECT scope.* FROM scope WHERE tenant = :tenant ORDER BY scope;

-- name: set_capacity
INSERT INTO scope (tenant, scope, bound, reserve, used) VALUES (:tenant, :scope, :bound, :reserve, 0)
ON CONFLICT (tenant, scope) DO UPDATE SET bound = excluded.bound, reserve = excluded.reserve;

-- name: get_admission
SELECT admission_receipt.* FROM admission_receipt WHERE command_key = :command_key;

-- name: add_admission
INSERT INTO admission_receipt (id, command_key, verdict, reason, effect_ref, at)
VALUES (:id, :command_key, :verdict, :reason, :effect_ref, :at)
ON CONFLICT (command_key) DO NOTHING;
