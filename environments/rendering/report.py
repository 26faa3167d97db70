"""Put a model's renderer to the proof, and say what is exact and what is not.

From:  environments.catalog, when a model is added or checked again (needs transformers).
To:    a report stored with the Model; the model's page and REST show it.
Holds: every check compares ids with those of the model's own chat template, or text with itself; a check that could
       not be made says why and counts as not proven.
Never: loads weights.

    template   whole conversations            = apply_chat_template
    opener     the generation prompt          = add_generation_prompt
    bridge     a sampled answer, then more    = the whole conversation rendered afresh, from the answer on
    round_trip encode, decode, parse          = the text that went in
    stop       how an answer ends             : ids, in the vocabulary, among them the template's own end
    tools      tools and calls                = the template's, or as text, read back
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from environments.rendering.frames import SAMPLE_TOOL, SAMPLES, Template
from environments.rendering.protocol import Message, Renderer, RendererError, Tool
from environments.rendering.tokens import ModelTokenizer

Verdict = Literal["exact", "partly", "not", "unproven"]
WORDS = {
    "template": "Whole conversations equal the model's chat template",
    "opener": "The generation prompt equals the template's",
    "bridge": "Extending a conversation equals rendering it whole",
    "round_trip": "Text survives encoding, decoding and parsing",
    "stop": "Answers end where the model ends them",
    "tools": "Tools and tool calls equal the template's",
}
REMEDIES = {
    "template": "Choose another renderer, or correct chat_template.jinja.",
    "opener": "Choose the renderer `whole`, which asks the template each time.",
    "bridge": "Training stays exact, but a turn begins a new branch: more tokens are computed. A hand-checked renderer"
    " (`renderers:<family>`) or an append-only template avoids it.",
    "round_trip": "Use the tokenizer's fast version with a byte-level or byte-fallback decoder.",
    "stop": "Write eos_token_id into generation_config.json.",
    "tools": "Harnesses that only write shell commands as text are not concerned; for others choose `whole`.",
}
TOOL_CALL = {"id": "call_1", "name": "bash", "arguments": '{"command": "ls -la"}'}
PATTERNS = ("u", "su", "ua", "sua", "suau", "suaua")


@dataclass(frozen=True, kw_only=True)
class Check:
    """right of tried; first: the first case that was not right."""

    key: str
    verdict: Verdict
    right: int
    tried: int
    first: str = ""

    @property
    def words(self) -> str:
        return WORDS[self.key]

    @property
    def remedy(self) -> str:
        return "" if self.verdict == "exact" else REMEDIES[self.key]


Case = tuple[str, Callable[[], bool]]


def build_report(renderer: Renderer, directory: Path) -> dict[str, Any]:
    """{"exact": bool, "checks": [{key, words, verdict, right, tried, first, remedy}], "renderer": name}"""
    from environments.rendering.template import load_template

    tokenizer = ModelTokenizer(directory)
    template = load_template(directory)
    prover = Prover(renderer=renderer, template=template, tokenizer=tokenizer)
    checks = [
        run_check("template", prover.template_cases()),
        run_check("opener", prover.opener_cases()),
        run_check("bridge", prover.bridge_cases()),
        run_check("round_trip", prover.round_trip_cases()),
        run_check("stop", prover.stop_cases()),
        run_check("tools", prover.tool_cases()),
    ]
    return {
        "renderer": renderer.name,
        "exact": all(check.verdict == "exact" for check in checks),
        "checks": [{**asdict(check), "words": check.words, "remedy": check.remedy} for check in checks],
    }


def run_check(key: str, cases: Iterator[Case]) -> Check:
    right, tried, first = 0, 0, ""
    for name, case in cases:
        tried += 1
        try:
            good = case()
            why = ""
        except (RendererError, ValueError, KeyError, TypeError) as error:
            good, why = False, f": {type(error).__name__}: {error}"
        right += good
        if not good and not first:
            first = f"{name}{why}"[:400]
    if not tried:
        return Check(key=key, verdict="unproven", right=0, tried=0, first="There was nothing to try it on.")
    verdict: Verdict = "exact" if right == tried else "partly" if right else "not"
    return Check(key=key, verdict=verdict, right=right, tried=tried, first=first)


@dataclass(frozen=True, kw_only=True)
class Prover:
    renderer: Renderer
    template: Template
    tokenizer: ModelTokenizer

    def template_ids(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> list[int]:
        """As the template writes it; text in a message that looks like a special token stays text."""
        contents, hidden = self.tokenizer.hide_specials([m.get("content") or "" for m in messages])
        safe = [{**m, "content": content} for m, content in zip(messages, contents, strict=True)]
        return self.tokenizer.encode_template(self.template(safe, list(tools), False), hidden)

    def rendered(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> list[int]:
        return [i for ids in self.renderer.render(messages, tools) for i in ids]

    def same_ids(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> bool:
        return self.rendered(messages, tools) == self.template_ids(messages, tools)

    def opens_with(self, messages: Sequence[Message], wanted: list[int]) -> bool:
        return list(self.renderer.opener(messages, [])) == wanted

    def is_silent(self, token_id: int) -> bool:
        return self.renderer.decoder().push(token_id) == ""

    def template_cases(self) -> Iterator[Case]:
        for pattern in PATTERNS:
            for start in range(0, len(SAMPLES), 3):
                messages = conversation(pattern, start)
                name = f"{[m['role'] for m in messages]} beginning with {messages[0]['content']!r}"
                yield name, partial(self.same_ids, messages)

    def opener_cases(self) -> Iterator[Case]:
        for pattern in ("u", "su", "suau"):
            messages = conversation(pattern, 0)
            whole = self.template(messages, [], False)
            opened = self.template(messages, [], True)
            wanted = self.tokenizer.encode_template(opened.removeprefix(whole))
            yield f"after {pattern}", partial(self.opens_with, messages, wanted)

    def bridge_cases(self) -> Iterator[Case]:
        """prompt + opener + answer, extended, must be the ids of the whole; a renderer that answers None is not exact."""
        for pattern in ("su", "u", "suau"):
            for new in ("u", "t"):
                before = conversation(pattern, 0)
                yield f"{pattern}, an answer, then {new}", partial(self.extends, before, new)

    def extends(self, before: list[dict[str, Any]], new: str) -> bool:
        role = {"u": "user", "t": "tool"}[new]
        added = [{"role": role, "content": "exit 0\nfine"}]
        opener = list(self.renderer.opener(before, []))
        answer = [*self.renderer.encode_text("Let me look."), self.renderer.stop_token_ids[0]]
        prompt = [*self.rendered(before), *opener]
        extension = self.renderer.extend(
            [*prompt, *answer], {"role": "assistant", "content": "Let me look."}, added, []
        )
        if extension is None:
            return False
        bridged = [*prompt, *answer, *(i for ids in extension for i in ids)]
        afresh = self.rendered([*before, {"role": "assistant", "content": "Let me look."}, *added])
        return bridged == afresh

    def round_trip_cases(self) -> Iterator[Case]:
        for sample in SAMPLES:
            yield f"{sample[:60]!r}", partial(self.survives, sample)

    def survives(self, text: str) -> bool:
        """Through the decoder, token by token; and as the content of a parsed answer, where the text says no more."""
        ids = self.renderer.encode_text(text)
        decoder = self.renderer.decoder()
        if "".join(map(decoder.push, ids)) + decoder.flush() != text:
            return False
        if any(mark in text for mark in ("<think>", "<tool_call>")):
            return True
        parsed = self.renderer.parse([*ids, self.renderer.stop_token_ids[0]])
        return str(parsed.get("content", "")).strip() == text.strip()

    def stop_cases(self) -> Iterator[Case]:
        stops = self.renderer.stop_token_ids
        yield "there is a stop token", lambda: bool(stops)
        for stop in stops:
            yield f"id {stop} gives no text", partial(self.is_silent, stop)
        ended = self.template_ids(conversation("ua", 0))
        yield "the template ends an answer with one", lambda: bool(set(ended[-3:]) & set(stops))

    def tool_cases(self) -> Iterator[Case]:
        before = conversation("su", 0)
        called = {"role": "assistant", "content": "", "tool_calls": [TOOL_CALL]}
        result = {"role": "tool", "tool_call_id": "call_1", "content": "a.py"}
        native = self.template(before, [SAMPLE_TOOL], False) != self.template(before, [], False)
        if native:
            for name, messages in (("tools described", before), ("a call and its result", [*before, called, result])):
                yield name, partial(self.same_ids, messages, [SAMPLE_TOOL])
        yield "a call is read back", lambda: self.reads_call_back(before, called)

    def reads_call_back(self, before: list[dict[str, Any]], called: dict[str, Any]) -> bool:
        """What the renderer writes for a call must parse to that call."""
        ids = self.renderer.render([*before, called], [SAMPLE_TOOL])[-1]
        opener = list(self.renderer.opener(before, [SAMPLE_TOOL]))
        body = ids[len(opener) :] if ids[: len(opener)] == opener else ids
        stop = next((n for n, i in enumerate(body) if i in self.renderer.stop_token_ids), len(body))
        calls = self.renderer.parse(body[: stop + 1]).get("tool_calls") or []
        return [call["name"] for call in calls] == ["bash"]


def conversation(pattern: str, start: int) -> list[dict[str, Any]]:
    roles = {"s": "system", "u": "user", "a": "assistant", "t": "tool"}
    return [{"role": roles[letter], "content": SAMPLES[(start + n) % len(SAMPLES)]} for n, letter in enumerate(pattern)]
