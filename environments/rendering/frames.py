"""Prove, by sample conversations, what a chat template puts around each kind of message.

From:  environments.catalog, when a model is added (needs transformers); chatml.py reads the stored result.
To:    Frames, or Unproven with the first conversation that differs.
Holds: for a proven kind, ids of the whole conversation = ids of its messages one after the other.
Never: trusts the template's text; every proof is on ids.

Worked example, SmolLM2: frame of "user" is ("<|im_start|>user\\n", "<|im_end|>\\n"), default_head is its built-in
system prompt, opener "<|im_start|>assistant\\n", tools "folded" (the template ignores them).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import cycle
from typing import Any, Literal

from environments.rendering.protocol import Message, RendererError, Tool
from environments.rendering.tokens import ModelTokenizer

Template = Callable[[Sequence[Message], Sequence[Tool], bool], str]
"""(messages, tools, with generation prompt) -> text. Raises ValueError where the template refuses."""

SENTINEL = "\ue000gyre\ue001"
SAMPLES = (
    "ls -la",
    "",
    " ",
    "\n",
    "  indented\n\tand tabbed  \n\n",
    "\n\nleading and trailing\n\n",
    "naïve café — “quoted” 日本語 😀👩‍👩‍👧 é",
    "```mswea_bash_command\ncat <<'EOF' > a.py\nprint({'a': 1})\nEOF\n```",
    "{{ messages }} {% if x %} {# note #}",
    "<think>\nreasons\n</think>\n\nanswer",
    "<think></think>",
    "<tool_call>\n{}\n</tool_call>",
    "1234 5678  90\r\nwindows\r\n",
    "</s> [INST] <s> <bos> <eos>",
    "\u200b\ufeff zero width \u00a0",
)
CONVERSATIONS = (
    "u",
    "ua",
    "su",
    "sua",
    "suau",
    "uaua",
    "suauaua",
    "uauauauau",
)
KIND_CONVERSATIONS = {
    "tool": ("uat", "suatat", "uatau", "suatt", "uattta"),
    "later_system": ("uas", "suasu", "usau", "suassu"),
    "repeated": ("uu", "suuau", "uaau", "sss", "uuuaa"),
}
ROLES = {"s": "system", "u": "user", "a": "assistant", "t": "tool"}
SAMPLE_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "bash", "description": "Run it.", "parameters": {"type": "object", "properties": {}}},
}


class Unproven(RendererError):
    """The template is not append-only where it must be; requests are rendered in full."""


@dataclass(frozen=True, kw_only=True)
class Frames:
    roles: Mapping[str, tuple[str, str]]
    """role -> text before and after its content."""
    kinds: tuple[str, ...]
    """Proven beyond system? (user assistant)*: of tool, later_system, repeated, tools."""
    default_head: str
    """What the template writes before a first message that is not a system message."""
    opener: str
    tools: Literal["folded", "native"]
    """folded: the template ignores tools, so they are written as text (tool_text.py); native: it writes them itself."""
    digest: str
    """Of the tokenizer and template that this was proven with."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Frames":
        roles = {role: (before, after) for role, (before, after) in data["roles"].items()}
        return cls(**{**data, "roles": roles, "kinds": tuple(data["kinds"])})

    def texts(self, messages: Sequence[Message]) -> list[str]:
        """Text of each message, where all kinds in it are proven."""
        texts = [self.roles[m["role"]][0] + (m.get("content") or "") + self.roles[m["role"]][1] for m in messages]
        if messages and messages[0]["role"] != "system":
            texts[0] = self.default_head + texts[0]
        return texts


def find_frames(template: Template, tokenizer: ModelTokenizer, digest: str) -> Frames:
    """Raises Unproven, saying what differed."""
    user = [{"role": "user", "content": SENTINEL}]
    text = template(user, [], False)
    twice = template([*user, {"role": "assistant", "content": "b"}, *user], [], False)
    later = added_text(template, [*user, {"role": "assistant", "content": "b"}], user[0])
    if later is None or not text.endswith(later) or not twice.endswith(later):
        raise Unproven("A user message is written differently at the start and later on.")
    roles = {"user": split_at_sentinel(later)}
    for role, before in (("assistant", user), ("tool", [*user, {"role": "assistant", "content": "b"}])):
        added = added_text(template, before, {"role": role, "content": SENTINEL})
        if added is not None and added.count(SENTINEL) == 1:
            roles[role] = split_at_sentinel(added)
    system = template([{"role": "system", "content": SENTINEL}, *user], [], False).removesuffix(later)
    if system.count(SENTINEL) == 1:
        roles["system"] = split_at_sentinel(system)
    if "assistant" not in roles:
        raise Unproven("An assistant message changes what the template wrote before it.")
    prompted = template(user, [], True)
    frames = Frames(
        roles=roles,
        kinds=(),
        default_head=text.removesuffix(later),
        opener=prompted.removeprefix(text),
        tools="native" if uses_tools(template) else "folded",
        digest=digest,
    )
    check_borders(frames, tokenizer)
    return prove_kinds(frames, template, tokenizer)


def added_text(template: Template, before: Sequence[Message], message: Message) -> str | None:
    try:
        shorter, longer = template(before, [], False), template([*before, message], [], False)
    except ValueError:
        return None
    return longer.removeprefix(shorter) if longer.startswith(shorter) else None


def split_at_sentinel(text: str) -> tuple[str, str]:
    before, _, after = text.partition(SENTINEL)
    return before, after


def uses_tools(template: Template) -> bool:
    user: list[Message] = [{"role": "user", "content": "a"}]
    call = {"id": "1", "type": "function", "function": {"name": "bash", "arguments": {"x": 1}}}
    called = [*user, {"role": "assistant", "content": "b", "tool_calls": [call]}]
    bare = [*user, {"role": "assistant", "content": "b"}]
    try:
        return template(user, [SAMPLE_TOOL], False) != template(user, [], False) or template(
            called, [], False
        ) != template(bare, [], False)
    except ValueError:
        return True


def check_borders(frames: Frames, tokenizer: ModelTokenizer) -> None:
    """Messages can be encoded one by one only if each begins with a special token that takes no spaces along."""
    begins = {f"a {role} message": before for role, (before, _) in frames.roles.items()}
    begins |= {"the generation prompt": frames.opener, "the end of an answer": frames.roles["assistant"][1]}
    if frames.default_head:
        begins["the default system prompt"] = frames.default_head
    for what, text in begins.items():
        if not tokenizer.starts_special(text):
            raise Unproven(f"{what} does not begin with a special token: {text[:40]!r}.")
    for special in tokenizer.special_ids:
        if any(special in text for text in begins.values()) and not tokenizer.is_clean(special):
            raise Unproven(f"The special token {special!r} takes neighbouring spaces along.")


def prove_kinds(frames: Frames, template: Template, tokenizer: ModelTokenizer) -> Frames:
    fault = first_difference(frames, template, tokenizer, CONVERSATIONS)
    if fault:
        raise Unproven(fault)
    proven = [
        kind
        for kind, conversations in KIND_CONVERSATIONS.items()
        if first_difference(frames, template, tokenizer, conversations) is None
    ]
    if frames.tools == "folded" or all(same_end(frames, template, tokenizer, p) for p in ("suau", "uaua")):
        proven.append("tools")
    return Frames(**{**asdict(frames), "roles": frames.roles, "kinds": tuple(proven)})


def same_end(frames: Frames, template: Template, tokenizer: ModelTokenizer, pattern: str) -> bool:
    """Whether, with tools described, all but the first message are still written by their frames."""
    messages = [{"role": ROLES[letter], "content": f"{letter}{n}"} for n, letter in enumerate(pattern)]
    try:
        return template(messages, [SAMPLE_TOOL], False).endswith("".join(frames.texts(messages)[1:]))
    except ValueError:
        return False


def first_difference(
    frames: Frames, template: Template, tokenizer: ModelTokenizer, conversations: Sequence[str]
) -> str | None:
    """Every sample content appears in every place of every conversation."""
    for pattern in conversations:
        if not {ROLES[letter] for letter in pattern} <= set(frames.roles):
            return f"No frame for a role of {pattern}."
        for start in range(len(SAMPLES)):
            contents = cycle([*SAMPLES[start:], *SAMPLES[:start]])
            messages = [{"role": ROLES[letter], "content": next(contents)} for letter in pattern]
            if not same_ids(frames, template, tokenizer, messages):
                return f"Conversation {[m['role'] for m in messages]} with {messages[0]['content']!r} first differs."
    return None


def same_ids(frames: Frames, template: Template, tokenizer: ModelTokenizer, messages: Sequence[Message]) -> bool:
    contents, hidden = tokenizer.hide_specials([m["content"] for m in messages])
    safe = [{**m, "content": content} for m, content in zip(messages, contents, strict=True)]
    try:
        whole = template(safe, [], False)
        prompted = template(safe, [], True)
    except ValueError:
        return False
    pieces = [i for text in frames.texts(safe) for i in tokenizer.encode_template(text, hidden)]
    opened = safe[-1]["role"] != "assistant" and prompted != whole + frames.opener
    return not opened and pieces == tokenizer.encode_template(whole, hidden)
