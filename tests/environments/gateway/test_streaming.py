"""A streamed answer says what the whole one says, whatever its chunks, and says it as soon as it is certain."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from environments.gateway.streaming import StreamText
from environments.rendering.tool_text import read_answer

WORDS = (
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    '{"name": "a", "arguments": {}}',
    "\n",
    " ",
    "<",
    "</",
    "I see",
    "é",
    "<tool",
)


class Renderer:
    """Our own parse of what was pushed so far."""

    def __init__(self, *, is_thinking=False, leaves_open_in_text=False):
        self.text = "<think>" if is_thinking else ""
        self.leaves_open_in_text = leaves_open_in_text
        self.parses = 0
        self.stream = StreamText(self.split, is_thinking=is_thinking)

    def split(self):
        self.parses += 1
        if self.leaves_open_in_text and "</think>" not in self.text:
            return ""
        return read_answer(self.text).get("reasoning") or ""

    def push(self, delta):
        self.text += delta
        return self.stream.push(delta)

    def finish(self):
        """(reasoning, text) still to be sent."""
        message = read_answer(self.text)
        return self.stream.rest_of_reasoning(message.get("reasoning") or ""), self.stream.rest(message["content"])


def stream(chunks, **kind):
    renderer = Renderer(**kind)
    pieces = [piece for chunk in chunks for piece in renderer.push(chunk)]
    reasoning, text = renderer.finish()
    said = {"reasoning": "", "text": ""}
    for name, value in [*pieces, ("reasoning", reasoning), ("text", text)]:
        said[name] += value
    return said, pieces, renderer


@given(st.lists(st.sampled_from(WORDS), max_size=14), st.booleans(), st.data())
def test_what_was_streamed_is_what_was_recorded_however_it_was_cut(words, is_thinking, data):
    text = "".join(words)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=8)) | {0, len(text)})
    chunks = [text[a:b] for a, b in itertools.pairwise(cuts)]
    said, pieces, renderer = stream(chunks, is_thinking=is_thinking)
    message = read_answer(renderer.text)
    assert said["reasoning"] == (message.get("reasoning") or "")
    assert said["text"].strip() == message["content"].strip()
    kinds = [kind for kind, _ in pieces]
    assert kinds == sorted(kinds)  # reasoning first


def test_reasoning_goes_out_while_it_is_open():
    said, pieces, _ = stream(["<think>\n", "Two ", "things ", "to see.\n", "</think>", "\n\nI look."])
    assert pieces[:3] == [("reasoning", "Two"), ("reasoning", " things"), ("reasoning", " to see.")]
    assert said == {"reasoning": "Two things to see.", "text": "I look."}


def test_reasoning_that_the_prompt_opened_goes_out_too():
    _, pieces, _ = stream(["Two ", "things"], is_thinking=True)
    assert pieces == [("reasoning", "Two"), ("reasoning", " things")]


def test_reasoning_that_a_renderer_leaves_in_the_text_until_it_closes_waits_for_that():
    said, pieces, _ = stream(["<think>\nTwo", " things", "</think>yes"], leaves_open_in_text=True)
    assert pieces == [("reasoning", "Two things"), ("text", "yes")]
    assert said["reasoning"] == "Two things"


def test_a_tool_call_inside_of_open_reasoning_is_not_sent_before_the_answer_is_whole():
    said, pieces, _ = stream(["<think>I call ", "<tool_", "call>{}", " more"])
    assert pieces == [("reasoning", "I call")]
    assert said["reasoning"] == "I call <tool_call>{} more"


def test_open_reasoning_is_parsed_once_however_long_it_gets():
    _, _, renderer = stream(["<think>", *["word "] * 500])
    assert renderer.parses == 1
