"""A model class for mini-swe-agent that speaks OpenAI Chat with the standard library alone.

From:  mini-swe-agent, through its public `model_class` setting; runs inside the sandbox.
To:    $OPENAI_BASE_URL/chat/completions (the relay).
Holds: what was said stays said: an answer without exactly one action stays in the history, with the format error
       after it, so that each request extends the one before. litellm would take 2 s of CPU to import.
Never: sends anything that changes from request to request, retries (the relay does), gives up on a slow answer
       before READ_TIMEOUT_S.
"""

import http.client
import json
import os
from types import SimpleNamespace
from typing import Any
from urllib.parse import SplitResult, urlsplit

from minisweagent.exceptions import FormatError
from minisweagent.models.utils.actions_text import format_observation_messages, parse_regex_actions
from minisweagent.models.utils.actions_toolcall import (
    BASH_TOOL,
    format_toolcall_observation_messages,
    parse_toolcall_actions,
)

READ_TIMEOUT_S = 24 * 3600.0


class Refused(RuntimeError):
    """The gateway answered with an error; its text names it (context_length_exceeded, ...)."""


class Config(dict[str, Any]):
    """The `model` section of the config file, as the agent expects to dump it."""

    def model_dump(self, mode: str = "python") -> dict[str, Any]:
        return dict(self)


class ChatModel:
    def __init__(self, **settings: Any) -> None:
        self.config = Config(settings)
        self._url: SplitResult = urlsplit(os.environ["OPENAI_BASE_URL"])

    def query(self, messages: list[dict[str, Any]], **_: Any) -> dict[str, Any]:
        spoken = [{"role": message["role"], "content": message["content"]} for message in messages]
        choice = self._post({"model": self.config["model_name"], "messages": spoken})["choices"][0]
        content = choice["message"].get("content") or ""
        answer = {"role": "assistant", "content": content, "extra": {"cost": 0.0}}
        try:
            actions = parse_regex_actions(
                content,
                action_regex=self.config["action_regex"],
                format_error_template=self.config["format_error_template"],
                template_kwargs={"finish_reason": choice.get("finish_reason")},
            )
        except FormatError as error:
            raise FormatError(answer, *error.messages) from error
        answer["extra"] = {"actions": actions, "cost": 0.0}
        return answer

    def format_message(self, **message: Any) -> dict[str, Any]:
        return message

    def format_observation_messages(
        self, message: dict[str, Any], outputs: list[dict[str, Any]], template_vars: dict[str, Any] | None = None
    ) -> list[dict[str, Any]]:
        template = self.config["observation_template"]
        return format_observation_messages(outputs, observation_template=template, template_vars=template_vars)

    def get_template_vars(self, **_: Any) -> dict[str, Any]:
        return dict(self.config)

    def serialize(self) -> dict[str, Any]:
        return {"info": {"config": {"model": dict(self.config), "model_type": "gyre_mini_model.ChatModel"}}}

    def _post(self, body: dict[str, Any]) -> dict[str, Any]:
        connection = http.client.HTTPConnection(str(self._url.hostname), self._url.port, timeout=READ_TIMEOUT_S)
        try:
            headers = {
                "content-type": "application/json",
                "authorization": f"Bearer {os.environ.get('OPENAI_API_KEY', '')}",
            }
            connection.request("POST", f"{self._url.path}/chat/completions", json.dumps(body), headers)
            response = connection.getresponse()
            text = response.read()
        finally:
            connection.close()
        if response.status != 200:
            raise Refused(f"{response.status}: {text[:2000].decode(errors='replace')}")
        return dict(json.loads(text))


class ToolModel(ChatModel):
    """The same with the program's one tool."""

    KEPT = ("role", "content", "tool_calls", "tool_call_id")

    def query(self, messages: list[dict[str, Any]], **_: Any) -> dict[str, Any]:
        spoken = [{name: message[name] for name in self.KEPT if name in message} for message in messages]
        choice = self._post({"model": self.config["model_name"], "messages": spoken, "tools": [BASH_TOOL]})["choices"][
            0
        ]
        given = choice["message"]
        calls = given.get("tool_calls") or []
        answer = {"role": "assistant", "content": given.get("content") or "", "extra": {"cost": 0.0}}
        if calls:
            answer["tool_calls"] = calls
        try:
            actions = parse_toolcall_actions(
                [SimpleNamespace(id=call["id"], function=SimpleNamespace(**call["function"])) for call in calls],
                format_error_template=self.config["format_error_template"],
                template_kwargs={"finish_reason": choice.get("finish_reason")},
            )
        except FormatError as error:
            raise FormatError(answer, *self._refused(calls, error)) from error
        answer["extra"] = {"actions": actions, "cost": 0.0}
        return answer

    def format_observation_messages(
        self, message: dict[str, Any], outputs: list[dict[str, Any]], template_vars: dict[str, Any] | None = None
    ) -> list[dict[str, Any]]:
        return format_toolcall_observation_messages(
            actions=message.get("extra", {}).get("actions", []),
            outputs=outputs,
            observation_template=self.config["observation_template"],
            template_vars=template_vars,
        )

    def _refused(self, calls: list[dict[str, Any]], error: FormatError) -> list[dict[str, Any]]:
        """Every call of a malformed turn gets the error as its result; a turn without calls a user message."""
        said = error.messages[0]
        if not calls:
            return list(error.messages)
        return [{**said, "role": "tool", "tool_call_id": call["id"]} for call in calls]
