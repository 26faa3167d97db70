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
requested, imposed, unknown, drift, num_prompt_tokens, num_cached_tokens, num_sampled_tokens, finish_reason, http_status,
error, engines, retry_of_id, replay_of_id, started_at, first_token_s, held_s, duration_s"""

LOAD_CALLS = f"select {CALL_COLUMNS} from environments_call where rollout_id = %(rollout)s order by index"

NODE_COLUMNS = """rollout_id, index, parent, depth_tokens, key, role, branch_role, sampled, trainable, opener_length, ids,
behaviour_logprobs, version_spans, oldest_kv_version, engines, message, flags, created_at"""

ONE_NODE_INSERT = f"""
insert into environments_node ({NODE_COLUMNS})
select %(rollout)s, %(n_index)s::int, %(n_parent)s::int, %(n_depth)s::int, %(n_key)s::bytea, %(n_role)s,
    %(n_branch_role)s, %(n_sampled)s, %(n_trainable)s, %(n_opener)s::smallint, %(n_ids)s::bytea, %(n_logprobs)s::bytea,
    %(n_spans)s::jsonb, %(n_oldest_kv)s::int, %(n_engines)s::jsonb, %(n_message)s::jsonb, %(n_flags)s::jsonb, now()
from held where %(n_index)s::int is not null
"""

NODE_INSERT = f"""
insert into environments_node ({NODE_COLUMNS})
select %(rollout)s, n.index, n.parent, n.depth_tokens, decode(n.key, 'hex'), n.role, n.branch_role, false, false, 0,
    decode(n.ids, 'hex'), null, '[]'::jsonb, null, '[]'::jsonb, n.message, n.flags, now()
from held, json_to_recordset(%(nodes)s::json) as n(index int, parent int, depth_tokens int, key text, role text,
    branch_role text, ids text, message jsonb, flags jsonb)
"""

ROLLOUT_UPDATE = """
update environments_rollout set num_calls = %(r_calls)s, num_branches = %(r_branches)s,
    sampled_tokens = %(r_sampled)s, distinct_tokens = %(r_distinct)s, longest_context = %(r_longest)s,
    oldest_version = %(r_oldest)s::int, newest_version = %(r_newest)s::int, drift = %(r_drift)s::jsonb,
    last_activity_at = now()
where id = %(rollout)s and exists (select 1 from held)
"""

# An opening may be lost with a crash of Postgres; an end may not, and its flush takes the opening along. An end whose
# opening is lost writes nothing: calls.py opens the call once more.
OPEN_CALL = f"""
with held as (
    select set_config('synchronous_commit', 'off', true) from environments_session
    where id = %(c_session)s and gateway = %(me)s and finished_at is null
), nodes as ({NODE_INSERT}), counted as ({ROLLOUT_UPDATE})
insert into environments_call (rollout_id, {CALL_COLUMNS})
select %(rollout)s, %(c_id)s, %(c_session)s, %(c_index)s, %(c_relay_call)s, %(c_dialect)s, %(c_digest)s, %(c_state)s,
    %(c_prompt_node)s::int, %(c_answer_node)s::int, %(c_streamed)s, %(c_requested)s::jsonb, %(c_imposed)s::jsonb,
    %(c_unknown)s::jsonb, %(c_drift)s::jsonb, %(c_num_prompt)s, %(c_num_cached)s, %(c_num_sampled)s, %(c_finish)s, %(c_status)s::smallint,
    %(c_error)s, %(c_engines)s::jsonb, %(c_retry_of)s::uuid, %(c_replay_of)s::uuid, %(c_started)s, %(c_first_token)s::float8, %(c_held)s,
    %(c_duration)s::float8
from held
"""

FINISH_CALL = f"""
with held as (
    select 1 from environments_session s join environments_call c on c.session_id = s.id
    where s.id = %(c_session)s and s.gateway = %(me)s and c.id = %(c_id)s
), nodes as ({ONE_NODE_INSERT}), counted as ({ROLLOUT_UPDATE})
update environments_call set state = %(c_state)s, answer_node = %(c_answer_node)s::int, imposed = %(c_imposed)s::jsonb,
    num_cached_tokens = %(c_num_cached)s, num_sampled_tokens = %(c_num_sampled)s, finish_reason = %(c_finish)s,
    http_status = %(c_status)s::smallint, error = %(c_error)s, engines = %(c_engines)s::jsonb,
    first_token_s = %(c_first_token)s::float8, held_s = %(c_held)s, duration_s = %(c_duration)s::float8
where id = %(c_id)s and exists (select 1 from held)
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
