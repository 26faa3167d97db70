"""Tools, calls and reasoning as text: what is written is read back, and what cannot be read is not lost."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from environments.rendering.scripted import ScriptedRenderer
from environments.rendering.tool_text import describe_tools, fold_message, read_answer, read_call

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
ARGUMENTS = st.dictionaries(st.text(max_size=5), JSON, max_size=3).flatmap(
    lambda value: st.sampled_from([json.dumps(value), json.dumps(value, indent=1), json.dumps(value, ensure_ascii=False)])
)  # fmt: skip
PLAIN = st.text(max_size=20).map(lambda text: text.replace("<", "(")).map(lambda text: text.strip("\n"))


@settings(max_examples=150, deadline=None, derandomize=True)
@given(PLAIN, PLAIN, st.lists(st.tuples(st.text(min_size=1, max_size=8), ARGUMENTS), max_size=3))
def test_a_turn_that_is_written_is_read_back_in_its_own_characters(reasoning, content, calls):
    calls = [(name, arguments) for name, arguments in calls if "</tool_call>" not in arguments]
    message = {"role": "assistant", "content": content}
    if reasoning:
        message["reasoning"] = reasoning
    if calls:
        message["tool_calls"] = [{"id": "x", "name": name, "arguments": arguments} for name, arguments in calls]
    got = read_answer(fold_message(message)["content"])
    assert got["content"] == content
    assert got.get("reasoning", "") == reasoning
    assert [(c["name"], c["arguments"]) for c in got.get("tool_calls", ())] == calls


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ('{"name": "a", "arguments": {"x":1.50,  "y": 12345678901234567890}}', ("a", '{"x":1.50,  "y": 12345678901234567890}')),
        ('{"arguments": {}, "name": "a"}', ("a", "{}")),
        ('{"name": "a"}', ("a", "{}")),
        ('{"name": "a", "arguments": "free text"}', ("a", "free text")),
        ('{"name": "a", "arguments": {"x": "cut', ("a", '{"x": "cut')),
        ('{"name": "a", "arguments": {"x": "cut}', ("a", '{"x": "cut')),
        ('{"name": 1, "arguments": {}}', None),
        ('{"name": "a", "argum', None),
        ("[]", None),
        ("", None),
    ],
)  # fmt: skip
def test_a_call_is_read_as_far_as_its_name_can_be(body, expected):
    call = read_call(body)
    assert (call and (call["name"], call["arguments"])) == expected


def test_reasoning_that_was_never_closed_is_all_reasoning():
    assert read_answer("<think>\nso far") == {"role": "assistant", "content": "", "reasoning": "so far"}
    assert read_answer("<think>\n\n</think>\n\nHi") == {"role": "assistant", "content": "Hi"}


def test_tools_are_described_once_in_the_first_message():
    tool = {"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}
    told = ScriptedRenderer().render([{"role": "system", "content": "S"}, {"role": "user", "content": "U"}], [tool])
    texts = [bytes(i for i in ids if i < 256).decode() for ids in told]
    assert texts[0] == "system\nS\n\n" + describe_tools([tool])
    assert texts[1] == "user\nU"
