"""The statements of record.py. Tables are the Django models of environments.models.

`%(name)s` is a parameter; `compile_statement` makes the `$1` form that Postgres takes, once: psycopg would read long
statements anew for each call (0.6 ms).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

PARAMETER = re.compile(r"%\((\w+)\)s")


@dataclass(frozen=True, kw_only=True)
class Statement:
    text: str
    names: tuple[str, ...]

    def values(self, parameters: Mapping[str, Any]) -> list[Any]:
        return [parameters[name] for name in self.names]


@lru_cache
def compile_statement(sql: str) -> Statement:
    """ "... %(a)s, %(b)s, %(a)s" -> "... $1, $2, $1" with names (a, b)."""
    names = tuple(dict.fromkeys(PARAMETER.findall(sql)))
    numbers = {name: f"${number}" for number, name in enumerate(names, 1)}
    return Statement(text=PARAMETER.sub(lambda match: numbers[match[1]], sql), names=names)


LOAD_ENGINES = """
select id, name, pool, base_url, api_key, model_name, state, version, cache_policy, standalone, turn_order
from environments_engine where state <> 'stopped'
"""

LOAD_SESSION = """
select s.id, s.key, s.gateway, coalesce(s.gateway_expires_at < now(), true) as lease_is_over, s.finished_at,
       r.id as rollout_id, r.pool, r.sampling, r.budgets, r.ending, r.drift, h.delivery, h.program,
       t.instruction, t.directory as task_directory, r.model_id,
       exists (select 1 from environments_call c where c.rollout_id = r.id and c.session_id <> s.id) as is_second,
       f.original_id, f.call_index as fork_call
from environments_session s
join environments_rollout r on r.id = s.rollout_id
join environments_harness h on h.id = r.harness_id
join environments_task t on t.id = r.task_id
left join environments_fork f on f.rollout_id = r.id
where s.key = %(key)s
"""

CLAIM_SESSION = """
update environments_session
set gateway = %(me)s, gateway_expires_at = now() + make_interval(secs => %(lease_s)s)
where id = %(session)s and (gateway in ('', %(me)s, %(seen)s) or gateway_expires_at < now())
"""

RENEW_SESSIONS = """
update environments_session set gateway_expires_at = now() + make_interval(secs => %(lease_s)s)
where id = any(%(sessions)s) and gateway = %(me)s and finished_at is null
returning id
"""

RELEASE_SESSIONS = """
update environments_session set gateway = '', gateway_expires_at = null where gateway = %(me)s
"""

LOAD_NODES = """
select index, parent, depth_tokens, key, role, branch_role, ids, message, sampled, trainable, opener_length,
       behaviour_logprobs, version_spans, oldest_kv_version, engines, flags
from environments_node where rollout_id = %(rollout)s order by index
"""

CALL_COLUMNS = """id, session_id, index, relay_call, dialect, digest, state, prompt_node, answer_node, streamed,
requested, imposed, unknown, drift, num_prompt_tokens, num_cached_tokens, num_sampled_tokens, finish_reason,
http_status, error, engines, retry_of_id, replay_of_id, started_at, first_token_s, held_s, duration_s"""

LOAD_CALLS = f"select {CALL_COLUMNS} from environments_call where rollout_id = %(rollout)s order by index"

NODE_COLUMNS = """rollout_id, index, parent, depth_tokens, key, role, branch_role, sampled, trainable, opener_length, ids,
behaviour_logprobs, version_spans, oldest_kv_version, engines, message, flags, created_at"""

COUNT_ROLLOUTS = """
update environments_rollout r set num_calls = h.r_calls, num_branches = h.r_branches, sampled_tokens = h.r_sampled,
    distinct_tokens = h.r_distinct, longest_context = h.r_longest, oldest_version = h.r_oldest,
    newest_version = h.r_newest, drift = h.r_drift, last_activity_at = now()
from held h where r.id = h.rollout
"""
COUNTER_TYPES = """rollout uuid, r_calls int, r_branches int, r_sampled bigint, r_distinct bigint, r_longest int,
r_oldest int, r_newest int, r_drift jsonb"""

# OPEN_CALLS and FINISH_CALLS take rows that wait together (batches.py): $1 a JSON array, $2 this gateway's name.
# An opening may be lost with a crash of Postgres; an end may not, and its flush takes the opening along. An end whose
# opening is lost writes nothing: ending.py opens the call once more.
OPEN_CALLS = f"""
with held as (
    select g.*, set_config('synchronous_commit', 'off', true) from json_to_recordset($1::json) as g(
        id uuid, session_id uuid, index int, relay_call text, dialect text, digest text, state text, prompt_node int,
        answer_node int, streamed boolean, requested jsonb, imposed jsonb, unknown jsonb, drift jsonb,
        num_prompt_tokens int, num_cached_tokens int, num_sampled_tokens int, finish_reason text, http_status smallint,
        error text, engines jsonb, retry_of_id uuid, replay_of_id uuid, started_at timestamptz, first_token_s float8,
        held_s float8, duration_s float8, nodes json, {COUNTER_TYPES})
    join environments_session s on s.id = g.session_id
    where s.gateway = $2 and s.finished_at is null
), added as (
    insert into environments_node ({NODE_COLUMNS})
    select h.rollout, n.index, n.parent, n.depth_tokens, decode(n.key, 'hex'), n.role, n.branch_role, false, false, 0,
        decode(n.ids, 'hex'), null, '[]'::jsonb, null, '[]'::jsonb, n.message, n.flags, now()
    from held h, json_to_recordset(h.nodes) as n(index int, parent int, depth_tokens int, key text, role text,
        branch_role text, ids text, message jsonb, flags jsonb)
), counted as ({COUNT_ROLLOUTS})
insert into environments_call (rollout_id, {CALL_COLUMNS})
select rollout, id, session_id, index, relay_call, dialect, decode(digest, 'hex'), state, prompt_node, answer_node,
    streamed, requested, imposed, unknown, drift, num_prompt_tokens, num_cached_tokens, num_sampled_tokens,
    finish_reason, http_status, error, engines, retry_of_id, replay_of_id, started_at, first_token_s, held_s, duration_s
from held
returning id
"""

FINISH_CALLS = f"""
with held as (
    select g.* from json_to_recordset($1::json) as g(
        id uuid, session_id uuid, state text, answer_node int, imposed jsonb, num_cached_tokens int,
        num_sampled_tokens int, finish_reason text, http_status smallint, error text, engines jsonb,
        first_token_s float8, held_s float8, duration_s float8, node json, {COUNTER_TYPES})
    join environments_session s on s.id = g.session_id
    join environments_call c on c.id = g.id and c.session_id = s.id
    where s.gateway = $2
), added as (
    insert into environments_node ({NODE_COLUMNS})
    select h.rollout, n.index, n.parent, n.depth_tokens, decode(n.key, 'hex'), n.role, n.branch_role, n.sampled,
        n.trainable, n.opener_length, decode(n.ids, 'hex'), decode(n.logprobs, 'hex'), n.version_spans,
        n.oldest_kv_version, n.engines, n.message, n.flags, now()
    from held h, json_to_record(h.node) as n(index int, parent int, depth_tokens int, key text, role text,
        branch_role text, sampled boolean, trainable boolean, opener_length smallint, ids text, logprobs text,
        version_spans jsonb, oldest_kv_version int, engines jsonb, message jsonb, flags jsonb)
    where n.index is not null
), counted as ({COUNT_ROLLOUTS})
update environments_call c set state = h.state, answer_node = h.answer_node, imposed = h.imposed,
    num_cached_tokens = h.num_cached_tokens, num_sampled_tokens = h.num_sampled_tokens,
    finish_reason = h.finish_reason, http_status = h.http_status, error = h.error, engines = h.engines,
    first_token_s = h.first_token_s, held_s = h.held_s, duration_s = h.duration_s
from held h where c.id = h.id
returning c.id
"""

MARK_CALL = """
with marked as (
    update environments_node set trainable = %(trainable)s, flags = %(flags)s::jsonb
    where rollout_id = %(rollout)s and index = %(node)s::int
)
update environments_call set state = %(state)s where id = %(call)s
"""

SET_ENDING = """
update environments_rollout set ending = %(ending)s where id = %(rollout)s and ending = '' and state <> 'ended'
"""
