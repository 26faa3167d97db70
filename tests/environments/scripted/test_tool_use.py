"""The scripted engine finds in each prompt's own tools how its harness acts."""

import json
from typing import Any

import pytest

from environments.rendering.scripted import ScriptedRenderer
from environments.rendering.tool_text import read_tool_calls
from environments.scripted import tool_use
from environments.scripted.engine import Prompt
from environments.scripted.script import act, build_rule


def tool(name: str, required: list[str], **properties: str) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {key: {"type": kind} for key, kind in properties.items()}}
    return {"type": "function", "function": {"name": name, "parameters": parameters | {"required": required}}}


SHELL = tool("bash", ["command"], command="string", timeout="number")
DESCRIBED = tool("bash", ["command", "description"], command="string", description="string")
CODEX = tool("exec_command", ["cmd"], cmd="string", workdir="string")
BACKGROUND = tool("run_shell_command", ["command", "is_background"], command="string", is_background="boolean")
WRITE = tool("Write", ["file_path", "content"], file_path="string", content="string")
READ = tool("read_file", ["absolute_path"], absolute_path="string", limit="number")
EDIT = tool("edit", ["path", "oldText", "newText"], path="string", oldText="string", newText="string")
IMAGE = tool("view_image", ["path"], path="string")
SEND = tool("agents.send_input", ["target", "message"], target="string", message="string")
SPAWN = tool("agents.spawn_agent", ["message"], message="string")
AGENT = tool("Agent", ["prompt", "subagent_type"], prompt="string", subagent_type="string")


def prompt_text(*tools: dict[str, Any], system: str = "You work.") -> str:
    messages = [{"role": "system", "content": system}, {"role": "user", "content": "Do it."}]
    renderer = ScriptedRenderer()
    ids = [i for message in renderer.render(messages, tools) for i in message]
    return Prompt(ids=[*ids, *renderer.opener(messages, tools)], number=0).text


def called(text: str) -> tuple[str, Any]:
    _, calls = read_tool_calls(text)
    return calls[0]["name"], json.loads(calls[0]["arguments"])


@pytest.mark.parametrize(
    ("offered", "wanted"),
    [
        (SHELL, ("bash", {"command": "ls"})),
        (CODEX, ("exec_command", {"cmd": "ls"})),
        (BACKGROUND, ("run_shell_command", {"command": "ls", "is_background": False})),
        (DESCRIBED, ("bash", {"command": "ls", "description": "as the script says"})),
    ],
)
def test_a_command_is_run_with_the_tool_that_takes_one(offered, wanted):
    assert called(tool_use.run(prompt_text(EDIT, offered), "ls")) == wanted


def test_a_file_is_written_and_read_with_tools_that_take_paths():
    text = prompt_text(EDIT, SHELL, READ, WRITE)
    assert called(tool_use.write(text, "out.txt", "good")) == (
        "Write",
        {"file_path": "/work/out.txt", "content": "good"},
    )
    assert called(tool_use.read(text, "out.txt")) == ("read_file", {"absolute_path": "/work/out.txt"})


def test_where_only_a_shell_is_offered_the_shell_writes_and_reads():
    text = prompt_text(SHELL)
    assert called(tool_use.write(text, "out.txt", "it's")) == ("bash", {"command": "printf %s 'it'\"'\"'s' > out.txt"})
    assert called(tool_use.read(text, "out.txt")) == ("bash", {"command": "cat out.txt"})


def test_without_tools_the_prompts_text_protocol_is_spoken():
    assert tool_use.run(prompt_text(), "ls") == "```bash\nls\n```"
    edited = tool_use.write(prompt_text(system="Use SEARCH/REPLACE blocks."), "out.txt", "good")
    assert edited.startswith("out.txt\n```\n<<<<<<< SEARCH\n=======\ngood\n")


def test_an_image_viewer_is_no_way_to_read_a_file():
    assert called(tool_use.read(prompt_text(IMAGE, SHELL), "out.txt"))[0] == "bash"


def test_a_tool_in_a_namespace_is_known_by_its_own_name():
    assert called(tool_use.delegate(prompt_text(SEND, SPAWN), "look"))[0] == "agents.spawn_agent"


def test_a_sub_agent_is_started_with_the_tool_that_takes_a_prompt():
    wanted = ("Agent", {"prompt": "look", "subagent_type": "as the script says"})
    assert called(tool_use.delegate(prompt_text(SHELL, AGENT), "look")) == wanted


def test_what_no_tool_can_do_is_said_with_the_tools_names():
    with pytest.raises(tool_use.NoTool, match="edit"):
        tool_use.run(prompt_text(EDIT), "ls")


def test_a_script_that_cannot_go_on_says_so_in_its_answer():
    rule = build_rule([[".", {"run": "ls"}]])
    renderer = ScriptedRenderer()
    ids = [i for message in renderer.render([{"role": "user", "content": "hi"}], [EDIT]) for i in message]
    assert rule(Prompt(ids=ids, number=0)) == "The script cannot go on: None of edit runs a command."


def test_the_end_is_submitted_where_the_prompt_asks_for_that():
    assert called(tool_use.finish(prompt_text(SHELL, system="When done, run submit."), "Done.")) == (
        "bash",
        {"command": "submit"},
    )
    assert tool_use.finish(prompt_text(SHELL), "Done.") == "Done."


def test_an_action_can_speak_think_and_act_several_times_in_one_turn():
    text = act(prompt_text(SHELL), {"think": "hm", "say": "Both.", "all": [{"run": "a"}, {"run": "b"}]})
    content, calls = read_tool_calls(text)
    assert content == "<think>hm</think>\nBoth."
    assert [json.loads(call["arguments"])["command"] for call in calls] == ["a", "b"]


def test_raw_arguments_stay_as_a_model_that_errs_would_write_them():
    _, calls = read_tool_calls(act("", {"call": ["bash", '{"command": "ls"']}))
    assert calls[0]["arguments"] == '{"command": "ls"'


def test_steps_follow_each_other_and_the_last_one_stays():
    rule = build_rule([[".", {"steps": ["one", "two"]}]])
    said = [rule(Prompt(ids=[*b"x"], number=number, call=f"c{number}")) for number in range(3)]
    assert said == ["one", "two", "two"]


def test_a_call_that_is_asked_again_gets_the_rest_of_its_answer_and_moves_nothing_on():
    rule = build_rule([[".", {"steps": ["one", "two"]}]])
    asked = [258]
    assert rule(Prompt(ids=asked, number=0, call="a")) == "one"
    assert rule(Prompt(ids=[*asked, *b"on"], number=1, call="a")) == "e"
    assert rule(Prompt(ids=asked, number=2, call="b")) == "two"
