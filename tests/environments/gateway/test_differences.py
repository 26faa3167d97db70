"""What harnesses do to their history, one class after the other, without a server: how it is matched, told, counted."""

import re
from uuid import uuid4

from hypothesis import given, settings
from hypothesis import strategies as st

from environments.gateway.messages import Request, tool_call_id
from environments.gateway.tree import Tree, TreeNode, context_node, pack, unpack
from environments.rendering.scripted import ANSWER, END, ScriptedRenderer

SYSTEM = {"role": "system", "content": "S"}
TASK = {"role": "user", "content": "Write ok."}
TOOLS = [{"type": "function", "function": {"name": "bash"}}]
CALL = '<tool_call>\n{"name": "bash", "arguments": {"command":  "ls", "t": 1.50}}\n</tool_call>'


class Conversation:
    """A tree that grows as a gateway's does."""

    def __init__(self, *volatile):
        self.tree = Tree(volatile=[re.compile(pattern) for pattern in volatile])
        self.renderer = ScriptedRenderer()

    def ask(self, history, answer, agent=""):
        """(the answer as the harness gets it, the plan); the answer's node is the tree's last."""
        request = Request(dialect="chat", messages=[dict(m) for m in history], tools=TOOLS, stream=False, requested={},
                          unknown={}, agent=agent)  # fmt: skip
        plan = self.tree.plan(request, self.renderer)
        parent = plan.parent
        for addition in plan.additions:
            self.tree.add(context_node(self.tree, addition, parent, branch_role="main", agent=agent))
            parent = len(self.tree.nodes) - 1
        self.tree.take(plan)
        call = uuid4().hex
        ids = [*answer.encode(), END]
        message = self.renderer.parse(ids)
        for position, tool_call in enumerate(message.get("tool_calls") or ()):
            tool_call["id"] = tool_call_id(call, position)
        self.tree.add(TreeNode(
            index=len(self.tree.nodes), parent=parent, depth_tokens=self.tree.nodes[parent].end_tokens,
            key=self.tree.answer_key(parent, message), role="assistant", branch_role="main", sampled=True,
            ids=pack([ANSWER, *ids]), message=message, agent=agent,
        ))  # fmt: skip
        self.tree.answers[call] = len(self.tree.nodes) - 1
        echo = {**message, "tool_calls": [dict(c) for c in message.get("tool_calls") or ()]}
        if not echo["tool_calls"]:
            del echo["tool_calls"]
        return echo | {"call": call}, plan

    @property
    def last(self):
        return len(self.tree.nodes) - 1

    def text(self, index):
        """Of the prompt up to a node, borders as newlines."""
        ids = unpack(b"".join(node.ids for node in self.tree.path(index)))
        return bytes(i if i < 256 else 10 for i in ids).decode()


def result(echo, text="R", position=0):
    return {"role": "tool", "tool_call_id": echo["tool_calls"][position]["id"], "content": text}


def own(echo, **changes):
    return {key: value for key, value in (echo | changes).items() if key != "call" and value is not None}


def test_compaction_that_keeps_old_turns_tells_them_in_the_sampled_words_as_context():
    """Claude Code keeps the last rounds with their ids; it has rewritten their arguments and dropped reasoning."""
    talk = Conversation()
    first, _ = talk.ask([SYSTEM, TASK], "<think>\nwhy\n</think>\n\nI look. " + CALL)
    sampled = talk.last
    rewritten = own(first, reasoning=None, tool_calls=[first["tool_calls"][0] | {"arguments": '{"t":2}', "name": "x"}])
    summary = {"role": "user", "content": "Summary: so far so good."}
    _, plan = talk.ask([SYSTEM, summary, rewritten, result(first)], "done")
    assert [(d.kind, d.message, d.node) for d in plan.differences] == [("reused", 2, sampled)]
    assert [a.flags for a in plan.additions] == [(), (f"reused:{sampled}",), ()]
    told = talk.text(talk.last)
    assert CALL in told
    assert "<think>\nwhy\n</think>" in told
    assert not talk.tree.nodes[talk.last - 2].sampled
    assert [node.index for node in talk.tree.nodes if node.sampled] == [sampled, talk.last]


def test_a_turn_merged_into_a_prefilled_one_is_found_again():
    """qwen-code: the compacted history ends with an assistant message, and the next answer is written behind it."""
    talk = Conversation()
    prefilled = {"role": "assistant", "content": "Got it. Thanks!"}
    head = [SYSTEM, {"role": "user", "content": "<summary>"}]
    answer, _ = talk.ask([*head, prefilled], "  I will write it.  \n\n" + CALL)
    sampled = talk.last
    merged = own(answer, content="Got it. Thanks!  I will write it.  \n\n")
    _, plan = talk.ask([*head, merged, result(answer)], "done")
    assert plan.parent == sampled
    assert [a.message["role"] for a in plan.additions] == ["tool"]
    assert {d.kind for d in plan.differences} == {"shape"}
    assert talk.tree.num_branches == 1
    _, plan = talk.ask([*head, merged, result(answer), {"role": "assistant", "content": "done"}, TASK], "ok")
    assert plan.differences == []


def test_an_edited_text_with_our_ids_is_a_branch_with_the_sampled_calls():
    talk = Conversation()
    first, _ = talk.ask([SYSTEM, TASK], "I look. " + CALL)
    sampled = talk.last
    edited = own(first, content="I looked!", tool_calls=[first["tool_calls"][0] | {"arguments": "{}"}])
    _, plan = talk.ask([SYSTEM, TASK, edited, result(first)], "done")
    assert [(d.kind, d.node) for d in plan.differences] == [("edit", 1)]
    assert plan.additions[0].flags == (f"edited:{sampled}",)
    assert "I looked!\n" + CALL in talk.text(talk.last)


def test_volatile_spans_keep_the_first_value_and_count_once():
    talk = Conversation(r"<total_tokens>\d+</total_tokens>")
    clock = [{"role": "user", "content": f"Go. <total_tokens>{n}</total_tokens>"} for n in (1, 2)]
    first, _ = talk.ask([clock[0]], "one")
    _, plan = talk.ask([clock[1], own(first), TASK], "two")
    assert [(d.kind, d.message, d.node) for d in plan.differences] == [("volatile", 0, 0)]
    assert "<total_tokens>1<" in talk.text(talk.last)
    _, plan = talk.ask([clock[1], own(first), TASK], "three")
    assert plan.differences == []


def test_dropped_and_trimmed_reasoning_is_shape_unless_its_seal_names_our_answer():
    for changes, kinds in (
        ({"reasoning": None}, ["shape"]),
        ({"reasoning": "why"}, ["shape"]),
        ({"reasoning": None, "reasoning_of": True}, []),
    ):
        talk = Conversation()
        first, _ = talk.ask([SYSTEM, TASK], "<think>\n why \n</think>\n\nI look.")
        if "reasoning_of" in changes:
            changes = {**changes, "reasoning_of": first["call"]}
        _, plan = talk.ask([SYSTEM, TASK, own(first, **changes), TASK], "done")
        assert plan.parent == 2
        assert [d.kind for d in plan.differences] == kinds


def test_a_sealed_reasoning_restores_a_text_turn_under_another_prefix():
    talk = Conversation()
    first, _ = talk.ask([SYSTEM, TASK], "<think>\nwhy\n</think>\n\nI look.")
    again = {"role": "assistant", "content": "I look.", "reasoning_of": first["call"]}
    talk.ask([SYSTEM, {"role": "user", "content": "Summary"}, again, TASK], "done")
    assert "<think>\nwhy\n</think>\n\nI look." in talk.text(talk.last)


def test_another_conversation_under_the_same_system_prompt_is_no_edit():
    talk = Conversation()
    talk.ask([SYSTEM, TASK], "one")
    _, plan = talk.ask([SYSTEM, {"role": "user", "content": "Search it."}], "two", agent="child")
    assert (plan.parent, plan.differences) == (0, [])


def test_two_conversations_that_take_turns_stay_apart():
    """A parent goes on while its sub-agent works; their bodies differ by their agent alone."""
    talk = Conversation()
    histories = {agent: [TASK] for agent in ("", "a", "b")}
    for round_ in range(3):
        for agent, history in histories.items():
            answer, _ = talk.ask(history, f"{CALL}{agent}{round_}", agent)
            history += [own(answer), result(answer)]
    sampled = [n for n in talk.tree.nodes if n.sampled]
    for agent in histories:
        assert [n.message["content"] for n in sampled if n.agent == agent] == [f"{agent}{i}" for i in range(3)]
        leaf = max(n.index for n in sampled if n.agent == agent)
        assert [n.agent for n in talk.tree.path(leaf) if n.sampled] == [agent] * 3


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.data())
def test_what_the_prompt_says_of_a_turn_of_ours_is_what_was_sampled(data):
    """However a history is cut, reordered into a new context, or rewritten: our calls are told in our characters."""
    talk = Conversation()
    history, echoes = [SYSTEM, TASK], []
    for turn in range(data.draw(st.integers(1, 4))):
        answer, _ = talk.ask(history, f"turn {turn} " + CALL.replace("ls", f"ls {turn}"))
        echoes.append(answer)
        history = [*history, own(answer), result(answer, f"R{turn}")]
    kept = data.draw(st.lists(st.sampled_from(range(len(echoes))), unique=True, min_size=1).map(sorted))
    prefix = data.draw(st.sampled_from([[SYSTEM, TASK], [SYSTEM], [{"role": "user", "content": "Summary"}]]))
    rounds = []
    for index in kept:
        calls = [
            echoes[index]["tool_calls"][0] | {"arguments": data.draw(st.sampled_from(["", "{}", '{"command":1}']))}
        ]
        rounds += [own(echoes[index], tool_calls=calls), result(echoes[index], f"R{index}")]
    before = [bytes(node.ids) for node in talk.tree.nodes]
    talk.ask([*prefix, *rounds], "end")
    assert [bytes(node.ids) for node in talk.tree.nodes[: len(before)]] == before
    told = talk.text(talk.last)
    for index in kept:
        assert f"turn {index}" in told
        assert CALL.replace("ls", f"ls {index}") in told
