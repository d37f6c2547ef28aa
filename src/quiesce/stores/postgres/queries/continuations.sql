-- name: add_continuation
INSERT INTO continuation (run_id, thread_id, tenant, head_run_id, receipt_id, rule, policy, basis, carry, base_run_id, gave_up,
  standing, actor, at)
VALUES (:run_id, :thread_id, :tenant, :head_run_id, :receipt_id, :rule, :policy, :basis, :carry, :base_run_id, :gave_up,
  :standing, :actor, :at);

-- name: continuation_of_run
SELECT continuation.* FROM continuation WHERE run_id = :run_id;

-- name: continuations_of_thread
SELECT continuation.* FROM continuation WHERE thread_id = :thread_id ORDER BY ordinal;

-- name: declare_policy
INSERT INTO standing_policy (tenant, scope, name, number, on_gap, carry, declared_by, declared_at)
VALUES (:tenant, :scope, :name, :number, :on_gap, :carry, :declared_by, :declared_at);

-- name: standing_policy
SELECT standing_policy.* FROM standing_policy
 WHERE tenant = :tenant AND scope = :scope AND name = :name
 ORDER BY number DESC LIMIT 1;

-- name: declared_policies
SELECT standing_policy.* FROM standing_policy
 WHERE tenant = :tenant AND scope <> 'message'
   AND number = (SELECT max(newer.number) FROM standing_policy AS newer
                  WHERE newer.tenant = standing_policy.tenant AND newer.scope = standing_policy.scope
                    AND newer.name = standing_policy.name)
 ORDER BY scope, name;
