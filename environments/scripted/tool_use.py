"""How the harness at the other end writes a file, reads one or runs a command: read from its own rendered prompt.

From:  the text of a prompt (environments.rendering.scripted shows tools as one JSON object a line).
To:    the text of an answer with that harness's own tool call, or with its text protocol where it has no tools.
Holds: a tool is known by the parameters it takes (a command; a path; a path and contents), never by the harness's name;
       required parameters that mean nothing here get a value of their type.
"""

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from environments.rendering.tool_text import INTRODUCTION, write_tool_call

COMMAND = ("command", "cmd", "script")
PATH = ("file_path", "filePath", "path", "absolute_path", "filename", "file")
CONTENT = ("content", "contents", "text", "file_text")
SHELL_NAME = re.compile(r"bash|shell|exec|command|terminal", re.I)
READ_NAME = re.compile(r"^(?!.*(image|write|edit)).*(read|view|open|cat)", re.I)
AGENT_NAME = re.compile(r"agent|task|spawn", re.I)
PROMPT = ("prompt", "message", "instructions", "task")


class NoTool(ValueError):
    """The prompt offers no way to do what the script wants."""


@dataclass(frozen=True, kw_only=True)
class OfferedTool:
    name: str
    properties: Mapping[str, Any]
    required: Sequence[str]

    @property
    def short_name(self) -> str:
        """Without its namespace."""
        return self.name.rpartition(".")[2]

    def first(self, names: Sequence[str]) -> str:
        return next((name for name in names if name in self.properties), "")


def read_tools(text: str) -> list[OfferedTool]:
    """The tools that a prompt describes; [] where it has none."""
    _, found, rest = text.partition(INTRODUCTION)
    return [read_tool(value) for value in leading_objects(rest)] if found else []


def leading_objects(text: str) -> Iterator[Mapping[str, Any]]:
    """One JSON object a line, until a line that is none."""
    for line in text.split("\n"):
        try:
            value = json.loads(line)
        except ValueError:
            return
        if not isinstance(value, dict) or "name" not in value:
            return
        yield value


def read_tool(value: Mapping[str, Any]) -> OfferedTool:
    schema = value.get("parameters") or value.get("input_schema") or value.get("parametersJsonSchema") or {}
    return OfferedTool(
        name=str(value["name"]), properties=schema.get("properties") or {}, required=schema.get("required") or ()
    )


def run(text: str, command: str) -> str:
    """Raises NoTool."""
    tools = read_tools(text)
    if not tools:
        return f"```bash\n{command}\n```"
    for tool in tools:
        parameter = tool.first(COMMAND)
        if parameter and SHELL_NAME.search(tool.short_name):
            return call(tool, {parameter: command})
    raise NoTool(f"None of {names_of(tools)} runs a command.")


def write(text: str, path: str, content: str) -> str:
    tools = read_tools(text)
    if not tools and "SEARCH/REPLACE" in text:
        return f"{path}\n```\n<<<<<<< SEARCH\n=======\n{content}\n>>>>>>> REPLACE\n```"
    for tool in tools:
        where, what = tool.first(PATH), tool.first(CONTENT)
        if where and what:
            return call(tool, {where: absolute(path), what: content})
    return run(text, f"printf %s {shlex.quote(content)} > {shlex.quote(path)}")


def read(text: str, path: str) -> str:
    for tool in read_tools(text):
        where = tool.first(PATH)
        if where and not tool.first(CONTENT) and READ_NAME.search(tool.short_name):
            return call(tool, {where: absolute(path)})
    return run(text, f"cat {shlex.quote(path)}")


def delegate(text: str, prompt: str) -> str:
    """Start a sub-agent. Raises NoTool."""
    tools = read_tools(text)
    for tool in tools:
        parameter = tool.first(PROMPT)
        if parameter and AGENT_NAME.search(tool.short_name):
            return call(tool, {parameter: prompt})
    raise NoTool(f"None of {names_of(tools)} starts a sub-agent.")


def finish(text: str, words: str) -> str:
    """Say so; where the prompt asks for `submit` (mini-swe-agent), run that."""
    return run(text, "submit") if "run submit" in text else words


def call(tool: OfferedTool, arguments: Mapping[str, Any]) -> str:
    """With a value of its type for each further required parameter."""
    further = {name: anything(tool.properties.get(name) or {}) for name in tool.required if name not in arguments}
    return write_tool_call(tool.name, json.dumps({**arguments, **further}))


def anything(schema: Mapping[str, Any]) -> Any:
    if schema.get("enum"):
        return schema["enum"][0]
    kind = schema.get("type")
    if isinstance(kind, list):
        kind = kind[0]
    values: dict[Any, Any] = {"boolean": False, "integer": 1, "number": 1, "array": [], "object": {}}
    return values.get(str(kind).lower(), "as the script says")


def absolute(path: str) -> str:
    return path if path.startswith("/") else f"/work/{path}"


def names_of(tools: Sequence[OfferedTool]) -> str:
    return ", ".join(tool.name for tool in tools) or "no tools"
