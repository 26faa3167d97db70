"""Freeform, namespaced and local_shell tools: offered to the model as functions, called in their own form."""

import json

from environments.gateway.dialects import Answer, Head, Target, find_dialect

TARGET = Target(method="POST", path="/v1/responses")
TOOLS = [
    {"type": "custom", "name": "apply_patch", "description": "Patch.", "format": {"type": "grammar"}},
    {"type": "namespace", "name": "agents", "tools": [{"type": "function", "name": "spawn", "parameters": {}}]},
    {"type": "local_shell"},
    {"type": "function", "name": "plain", "parameters": {}},
    {"type": "web_search"},
]
CALLS = [
    ("apply_patch", '{"input": "*** Begin"}'),
    ("agents.spawn", '{"task":  1}'),
    ("local_shell", '{"command": ["ls", "-l"], "timeout_ms": 5}'),
    ("plain", "{broken"),
]


def read(*items):
    dialect, _ = find_dialect(TARGET)
    body = {"input": [{"role": "user", "content": "U"}, *items], "tools": TOOLS}
    return dialect, dialect.read_request(body, TARGET)


def answer_of(request, dialect, *, stream):
    calls = [{"id": f"call_{i}", "name": name, "arguments": raw} for i, (name, raw) in enumerate(CALLS)]
    answer = Answer(message={"role": "assistant", "content": "", "tool_calls": calls}, finish_reason="tool_calls",
                    num_prompt_tokens=1, num_sampled_tokens=1, num_cached_tokens=0)  # fmt: skip
    head = Head(call="0" * 32, created=0, model="M", include_usage=False, hints=request.hints)
    if not stream:
        return json.loads(dialect.whole(head, answer))["output"]
    opened = dialect.open_stream(head)
    lines = (opened.begin() + opened.end(answer)).decode().split("\n")
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: ")]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    return events[-1]["response"]["output"]


def test_each_tool_is_a_function_to_the_model_and_hosted_ones_are_left_out():
    _, request = read()
    assert [tool["function"]["name"] for tool in request.tools] == [
        "apply_patch",
        "agents.spawn",
        "local_shell",
        "plain",
    ]
    assert request.unknown["left_out_tools"] == ["web_search"]


def test_calls_come_back_in_their_own_form_and_are_understood_again():
    dialect, request = read()
    for stream in (False, True):
        items = answer_of(request, dialect, stream=stream)
        assert [item["type"] for item in items] == [
            "custom_tool_call", "function_call", "local_shell_call", "function_call",
        ]  # fmt: skip
        assert items[0]["input"] == "*** Begin"
        assert (items[1]["namespace"], items[1]["name"], items[1]["arguments"]) == ("agents", "spawn", '{"task":  1}')
        assert items[2]["action"] == {"type": "exec", "command": ["ls", "-l"], "env": {}, "timeout_ms": 5}
        assert items[3]["arguments"] == "{broken"
        outputs = [
            {"type": "custom_tool_call_output", "call_id": "call_0", "output": "R0"},
            {"type": "function_call_output", "call_id": "call_1", "output": "R1"},
            {"type": "local_shell_call_output", "call_id": "call_2", "output": "R2"},
            {"type": "function_call_output", "call_id": "call_3", "output": [{"type": "input_text", "text": "R3"}]},
        ]
        _, again = read(*items, *outputs)
        assert [m["role"] for m in again.messages] == ["user", "assistant", *["tool"] * 4]
        assert [(c["id"], c["name"]) for c in again.messages[1]["tool_calls"]] == [
            (f"call_{i}", name) for i, (name, _) in enumerate(CALLS)
        ]
        told = [(m["tool_call_id"], m["content"]) for m in again.messages[2:]]
        assert told == [(f"call_{i}", f"R{i}") for i in range(4)]


def test_two_answers_in_a_row_stay_two_turns():
    """Codex sends the reasoning of a cut answer again, before the next one."""
    thought = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "a"}]}
    said = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "T"}]}
    _, request = read(thought, thought, said, said)
    assert [(m.get("reasoning"), m["content"]) for m in request.messages[1:]] == [("a", ""), ("a", "T"), (None, "T")]
