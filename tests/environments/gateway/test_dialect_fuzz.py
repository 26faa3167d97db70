"""Whatever is sent: an exact request, or a refusal that names the field. Never another exception."""

import copy
import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from environments.gateway.dialects import BadRequest, Target, find_dialect, load_dialects
from environments.gateway.messages import Request, find_media
from environments.gateway.tree import Tree
from environments.rendering.scripted import ScriptedRenderer

CALL = {"id": "a", "type": "function", "function": {"name": "bash", "arguments": '{"c": 1}'}}
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA"}}
BODIES = {
    "/v1/chat/completions": {
        "model": "M", "stream": True, "n": 1, "stop": None, "tool_choice": "auto", "response_format": {"type": "text"},
        "messages": [
            {"role": "developer", "content": [{"type": "text", "text": "S"}]}, {"role": "user", "content": "U"},
            {"role": "assistant", "content": None, "reasoning_content": "r", "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "a", "content": [{"type": "text", "text": "R"}]},
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]},
        ],
        "tools": [{"type": "function", "function": {"name": "bash", "parameters": {}}},
                  {"type": "custom", "custom": {"name": "patch"}}],
    },
    "/v1/responses": {
        "model": "M", "instructions": "S", "store": False, "include": ["reasoning.encrypted_content"],
        "text": {"format": {"type": "text"}}, "reasoning": {"summary": "auto"},
        "input": [
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "U"}]},
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "r"}], "encrypted_content": "eA=="},
            {"role": "assistant", "content": [{"type": "output_text", "text": "T"}]},
            {"type": "function_call", "call_id": "a", "name": "bash", "arguments": "{", "namespace": "n"},
            {"type": "custom_tool_call", "call_id": "b", "name": "patch", "input": "x"},
            {"type": "local_shell_call", "call_id": "c", "action": {"type": "exec", "command": ["ls"]}},
            {"type": "function_call_output", "call_id": "a", "output": [{"type": "input_text", "text": "R"}]},
            {"type": "web_search_call", "id": "w"},
        ],
        "tools": [{"type": "function", "name": "bash"}, {"type": "custom", "name": "patch"}, {"type": "local_shell"},
                  {"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "f"}]},
                  {"type": "web_search"}],
    },
    "/v1/messages": {
        "model": "M", "max_tokens": 5, "system": [{"type": "text", "text": "S"}], "tool_choice": {"type": "auto"},
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "U"}, IMAGE]},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "r", "signature": "eA=="}, {"type": "text", "text": "T"},
                {"type": "tool_use", "id": "a", "name": "bash", "input": {"c": 1}},
            ]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": [IMAGE]}]},
            {"role": "system", "content": "later"},
        ],
        "tools": [{"name": "bash", "input_schema": {}}, {"type": "web_search_20250305", "name": "web_search"}],
    },
    "/v1beta/models/M:generateContent": {
        "systemInstruction": {"parts": [{"text": "S"}]}, "generationConfig": {"temperature": 1, "candidateCount": 1},
        "contents": [
            {"role": "user", "parts": [{"text": "U"}, {"inlineData": {"mimeType": "image/png", "data": "AA"}}]},
            {"role": "model", "parts": [{"text": "r", "thought": True}, {"text": "T"},
                                        {"functionCall": {"name": "bash", "args": {"c": 1}}}]},
            {"role": "user", "parts": [{"functionResponse": {"name": "bash", "response": {"output": "R"}}}]},
        ],
        "tools": [{"functionDeclarations": [{"name": "bash", "parameters": {"type": "OBJECT"}}]},
                  {"googleSearch": {}}],
        "toolConfig": {"functionCallingConfig": {"mode": "AUTO"}},
    },
}  # fmt: skip
JUNK = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 5) | st.floats(allow_nan=False) | st.text(max_size=4) | st.just("\ud800"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["type", "role", "content", "text", "parts", "id", "name", "input", "arguments"]), inner,
        max_size=3),
    max_leaves=6,
)  # fmt: skip
FORMS = {
    "chat": lambda e: e["error"]["message"] and e["error"]["type"] and "code" in e["error"],
    "responses": lambda e: e["error"]["message"] and e["error"]["type"] and "code" in e["error"],
    "messages": lambda e: e["type"] == "error" and e["error"]["type"] and e["error"]["message"],
    "gemini": lambda e: e["error"]["code"] and e["error"]["status"].isupper() and e["error"]["message"],
}


def places(value, path=()):
    """Every place inside a JSON value."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from places(item, (*path, key))


def put(value, path, new, *, remove):
    """A copy with `new` at the path, or without what is there."""
    value = copy.deepcopy(value)
    if not path:
        return new
    at = value
    for key in path[:-1]:
        at = at[key]
    if remove:
        del at[path[-1]]
    else:
        at[path[-1]] = new
    return value


@st.composite
def spoilt(draw):
    """A path, and a good body of its dialect with some places changed."""
    path = draw(st.sampled_from(sorted(BODIES)))
    body = BODIES[path]
    for _ in range(draw(st.integers(1, 3))):
        where = draw(st.sampled_from(list(places(body))))
        body = put(body, where, draw(JUNK), remove=bool(where) and draw(st.booleans()))
        if not isinstance(body, dict | list):
            break
    return path, body


@settings(max_examples=100, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(spoilt())
def test_a_spoilt_body_is_read_or_refused_by_name(case):
    path, body = case
    target = Target(method="POST", path=path, query={"alt": "sse"})
    dialect, what = find_dialect(target)
    assert what == "complete"
    try:
        request = dialect.read_request(body, target)
    except BadRequest as bad:
        raw = dialect.error(400, bad.message, code="invalid_request", param=bad.param)
        assert FORMS[dialect.name](json.loads(raw))
        return
    assert isinstance(request, Request)
    assert request.messages
    if not find_media(request.messages):
        Tree().plan(request, ScriptedRenderer())


@pytest.mark.parametrize("path", BODIES)
def test_the_body_that_the_fuzz_starts_from_is_understood(path):
    target = Target(method="POST", path=path)
    dialect, _ = find_dialect(target)
    request = dialect.read_request(BODIES[path], target)
    assert [m["role"] for m in request.messages][:3] == ["system", "user", "assistant"]
    assert request.messages[2]["tool_calls"]
    assert request.tools


@pytest.mark.parametrize("dialect", load_dialects(), ids=lambda d: d.name)
@pytest.mark.parametrize("status", [400, 401, 404, 408, 409, 413, 415, 500, 503])
def test_every_error_has_its_dialects_form(dialect, status):
    assert FORMS[dialect.name](json.loads(dialect.error(status, "What to do.", code="some_code")))
