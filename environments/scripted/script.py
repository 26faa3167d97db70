"""What a scripted engine says: a rule made from a script, which may speak in actions instead of text.

From:  a script file, or `build_rule` with the same in Python.
To:    engine.Rule.
Holds: the last entry that matches answers; a call that is asked again (same id, or a prompt that ends within an answer)
       gets the rest of its answer, so that a lost engine or gateway moves no script on.

    [["regular expression on the prompt's text", ANSWERS], ...]
    ANSWERS: one answer, a list (they take turns), or {"steps": [...]} (one after the other, the last one stays)
    an answer: text, or an action: {"write": [path, text]} {"read": path} {"run": command} {"delegate": prompt}
               {"finish": words} {"call": [tool, raw arguments]} {"bad": command, as arguments cut in mid-JSON}; several in one turn: {"all": [action, ...]};
               beside any of them {"say": text before it} and {"think": reasoning before that}; {"empty": true}
"""

import json
import re
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from environments.rendering.tool_text import read_tool_calls, write_tool_call
from environments.scripted import tool_use

if TYPE_CHECKING:
    from environments.scripted.engine import Prompt, Rule

DEFAULT_ANSWER = "I have read {num} tokens."
KEPT_CALLS = 4096
Action = str | dict[str, Any]

ACTIONS: dict[str, Callable[[str, Any], str]] = {
    "write": lambda text, given: tool_use.write(text, *given),
    "read": tool_use.read,
    "run": tool_use.run,
    "delegate": tool_use.delegate,
    "finish": tool_use.finish,
    "call": lambda text, given: raw_call(*given),
    "bad": lambda text, given: spoil(tool_use.run(text, given)),
    "all": lambda text, given: "\n".join(act(text, each) for each in given),
    "empty": lambda text, given: "",
}


def act(text: str, action: Action) -> str:
    """The answer's text. Raises tool_use.NoTool."""
    if isinstance(action, str):
        return action
    pieces = [f"<think>{action['think']}</think>"] if "think" in action else []
    pieces += [action["say"]] if "say" in action else []
    pieces += [ACTIONS[name](text, given) for name, given in action.items() if name in ACTIONS]
    return "\n".join(pieces)


def try_to_act(text: str, action: Action) -> str:
    """What cannot be done is said in the answer, where whoever wrote the script sees it."""
    try:
        return act(text, action)
    except tool_use.NoTool as error:
        return f"The script cannot go on: {error}"


def raw_call(name: str, arguments: str) -> str:
    """`arguments` that are no JSON stay as they are: what a model that errs would write."""
    try:
        json.loads(arguments)
    except ValueError:
        return f'<tool_call>\n{{"name": {json.dumps(name)}, "arguments": {json.dumps(arguments)}}}\n</tool_call>'
    return write_tool_call(name, arguments)


def spoil(text: str) -> str:
    """The first call of an answer with the last brace of its arguments missing."""
    _, calls = read_tool_calls(text)
    return raw_call(calls[0]["name"], calls[0]["arguments"][:-1]) if calls else text.replace("```", "``")


@dataclass(frozen=True, kw_only=True)
class Entry:
    pattern: re.Pattern[str]
    answers: Sequence[Action]
    are_steps: bool = False

    def at(self, turn: int) -> Action:
        return self.answers[min(turn, len(self.answers) - 1) if self.are_steps else turn % len(self.answers)]


@dataclass(eq=False, kw_only=True)
class Script:
    entries: Sequence[Entry]
    given: Counter[int] = field(default_factory=Counter)
    """How often each entry has answered."""
    answered: OrderedDict[str, str] = field(default_factory=OrderedDict)
    """Call -> its answer, whole."""

    def __call__(self, prompt: "Prompt") -> str:
        asked, begun = prompt.split()
        if prompt.call in self.answered:
            return self.answered[prompt.call][len(begun) :]
        text = asked.text
        found = [index for index, entry in enumerate(self.entries) if entry.pattern.search(text)]
        if not found:
            return DEFAULT_ANSWER.format(num=len(prompt.ids))
        entry = self.entries[found[-1]]
        if begun:
            answers = (try_to_act(text, answer) for answer in entry.answers)
            return next((answer[len(begun) :] for answer in answers if answer.startswith(begun)), "")
        answer = try_to_act(text, entry.at(self.given[found[-1]]))
        self.given[found[-1]] += 1
        self._remember(prompt.call, answer)
        return answer

    def _remember(self, call: str, answer: str) -> None:
        if call:
            self.answered[call] = answer
            if len(self.answered) > KEPT_CALLS:
                self.answered.popitem(last=False)


def build_rule(entries: Sequence[Sequence[Any]]) -> "Rule":
    """Raises re.error, ValueError."""
    return Script(entries=[build_entry(*entry) for entry in entries])


def build_entry(pattern: str, answers: Any) -> Entry:
    compiled = re.compile(pattern, re.DOTALL)
    if isinstance(answers, dict) and "steps" in answers:
        return Entry(pattern=compiled, answers=answers["steps"], are_steps=True)
    return Entry(pattern=compiled, answers=answers if isinstance(answers, list) else [answers])


def load_rule(path: Path) -> "Rule":
    """From a script file. Raises re.error, json.JSONDecodeError."""
    return build_rule(json.loads(path.read_text()))
