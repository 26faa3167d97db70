"""The renderer without model files keeps the same rules."""

from hypothesis import given
from hypothesis import strategies as st

from environments.rendering.scripted import ANSWER, BEGIN, END, ScriptedRenderer

renderer = ScriptedRenderer()


def test_a_message_is_its_bytes_between_borders():
    assert renderer.render([{"role": "user", "content": "hi"}], []) == [[BEGIN, *b"user\n", *b"hi", END]]
    assert renderer.opener([], []) == [ANSWER]


@given(st.text(max_size=20))
def test_an_answer_comes_back_and_its_extension_equals_the_whole(text):
    sampled = [*renderer.encode_text(text), END]
    said = renderer.parse(sampled)
    assert said["content"] == text
    new = [{"role": "tool", "content": text}]
    [before, answer, after] = renderer.render([{"role": "user", "content": text}, said, *new], [])
    assert [before, [ANSWER, *sampled], *renderer.extend(sampled, said, new, [])] == [before, answer, after]


def test_an_answer_cut_by_length_is_closed():
    [ids] = renderer.extend([65], {}, [{"role": "user", "content": "b"}], [])
    assert ids[0] == END
