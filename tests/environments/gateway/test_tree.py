"""Which node a request continues, for what harnesses really do to history (docs: the tree)."""

import asyncio

import pytest
from asgiref.sync import sync_to_async
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from environments.gateway.messages import Request
from environments.gateway.tree import Tree, TreeNode, context_node, match_prefix, pack, unpack
from environments.models import Call, Node, Rollout
from environments.rendering.scripted import ScriptedRenderer
from tests.environments.gateway.conftest import INSTRUCTION, chat, check_identity

PATH = "/v1/chat/completions"
TOOLS = [{"type": "function", "function": {"name": "bash", "parameters": {}}}]
CALL = '<tool_call>\n{"name": "bash", "arguments": {"command": "ls", "timeout": "30"}}\n</tool_call>'
TWO_CALLS = CALL + '\n<tool_call>\n{"name": "bash", "arguments": {"command": "pwd"}}\n</tool_call>'
identity = sync_to_async(check_identity)


async def ask(client, messages, **more):
    response = await client.post(PATH, json=chat(*messages, **more))
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]["message"]


async def drift(session):
    return (await Rollout.objects.aget(id=session.rollout_id)).drift


def echo(message, **changes):
    return {"role": "assistant", **message, **changes}


def results(message):
    return [
        {"role": "tool", "tool_call_id": c["id"], "content": f"result {i}"} for i, c in enumerate(message["tool_calls"])
    ]


@pytest.mark.parametrize(
    "rewrite",
    [
        lambda call: call | {"function": {"name": "bash", "arguments": '{"timeout":30,"command":"ls"}'}},
        lambda call: call | {"function": {"name": "invalid", "arguments": "{}"}},
    ],
)
async def test_rewritten_arguments_and_names_keep_the_sampled_turn(world, rewrite):
    session = await world.session()
    world.engine.rule = lambda prompt: CALL if prompt.number == 0 else "done"
    async with world.client(session) as client:
        answer = await ask(client, [INSTRUCTION], tools=TOOLS)
        rewritten = echo(answer, tool_calls=[rewrite(answer["tool_calls"][0])])
        await ask(client, [INSTRUCTION, rewritten, *results(answer)], tools=TOOLS)
    assert (await Rollout.objects.aget(id=session.rollout_id)).num_branches == 1
    assert await drift(session) == {"arguments": 1}
    assert await identity(session.rollout_id, [world.engine]) == 2


async def test_parallel_calls_and_null_content_and_outer_blanks_are_shape(world):
    session = await world.session()
    world.engine.rule = lambda prompt: "  Both.\n\n" + TWO_CALLS if prompt.number == 0 else "done"
    async with world.client(session) as client:
        answer = await ask(client, ["system: S", INSTRUCTION], tools=TOOLS)
        assert len({call["id"] for call in answer["tool_calls"]}) == 2
        parts = [{"type": "text", "text": INSTRUCTION[:5]}, {"type": "text", "text": INSTRUCTION[5:]}]
        history = [
            {"role": "developer", "content": "S"},
            {"role": "user", "content": parts},
            echo(answer, content="Both."),
        ]
        await ask(client, [*history, *results(answer)], tools=TOOLS)
    assert (await Rollout.objects.aget(id=session.rollout_id)).num_branches == 1
    assert await drift(session) == {"shape": 1}
    assert await identity(session.rollout_id, [world.engine]) == 2


async def test_a_dropped_turn_branches_and_the_original_stays_trainable(world):
    """mini-swe-agent drops a turn without an action: two user messages follow each other."""
    session = await world.session()
    world.engine.rule = lambda prompt: f"turn {prompt.number}"
    async with world.client(session) as client:
        first = await ask(client, ["system: S", INSTRUCTION])
        await ask(client, ["system: S", INSTRUCTION, echo(first), {"role": "user", "content": "out"}])
        again = [{"role": "user", "content": "out"}, {"role": "user", "content": "Tool call error"}]
        await ask(client, ["system: S", INSTRUCTION, echo(first), *again])
    rollout = await Rollout.objects.aget(id=session.rollout_id)
    assert rollout.num_branches == 2
    assert rollout.drift == {"edit": 1}
    assert await Node.objects.filter(rollout=rollout, sampled=True, trainable=True).acount() == 3
    assert await identity(session.rollout_id, [world.engine]) == 3


async def test_an_edited_answer_is_context_on_a_branch(world):
    session = await world.session()
    world.engine.rule = lambda prompt: f"turn {prompt.number}"
    async with world.client(session) as client:
        await ask(client, [INSTRUCTION])
        await ask(client, [INSTRUCTION, "Got it. turn 0", "next"])
    edited = await Node.objects.aget(rollout=session.rollout_id, role="assistant", sampled=False)
    assert edited.message["content"] == "Got it. turn 0"
    assert not edited.trainable
    assert await drift(session) == {"edit": 1}
    assert await identity(session.rollout_id, [world.engine]) == 2


async def test_a_user_text_changed_by_one_newline_is_a_branch_not_an_error(world):
    session = await world.session()
    async with world.client(session) as client:
        answer = await ask(client, [INSTRUCTION])
        await ask(client, [INSTRUCTION, echo(answer), {"role": "user", "content": "a"}])
        await ask(client, [INSTRUCTION, echo(answer), {"role": "user", "content": "a\n"}])
    assert (await Rollout.objects.aget(id=session.rollout_id)).num_branches == 2


async def test_a_history_that_ends_with_an_answer_is_rendered(world):
    session = await world.session()
    async with world.client(session) as client:
        answer = await ask(client, [INSTRUCTION])
        await ask(client, [INSTRUCTION, echo(answer)])
    assert await identity(session.rollout_id, [world.engine]) == 2


async def test_identical_bodies_after_delivery_are_siblings_and_of_agents_too(world):
    session = await world.session()
    async with world.client(session) as client:
        await ask(client, [INSTRUCTION])
        await ask(client, [INSTRUCTION])
        for agent in ("a", "b"):
            response = await client.post(PATH, json=chat(INSTRUCTION), headers={"x-claude-code-agent-id": agent})
            assert response.status_code == 200
    parents = [node.parent async for node in Node.objects.filter(rollout=session.rollout_id, sampled=True)]
    assert parents == [0, 0, 0, 0]


async def test_sub_agents_titles_and_summaries_get_their_roles(world):
    session = await world.session()
    async with world.client(session) as client:
        answer = await ask(client, ["system: Agent", INSTRUCTION], tools=TOOLS)
        await ask(client, ["system: You are a title generator", INSTRUCTION])
        await ask(client, ["system: You search", "find it"], tools=TOOLS)
        await ask(client, ["hello?"])
        summary = {"role": "user", "content": "Summarize the conversation so far."}
        await ask(client, ["system: Agent", INSTRUCTION, echo(answer), summary], tools=TOOLS)
        await ask(client, ["system: Agent", "Earlier: <summary>"], tools=TOOLS)
    roles = [
        n.branch_role async for n in Node.objects.filter(rollout=session.rollout_id, sampled=True).order_by("index")
    ]
    assert roles == ["main", "side", "sub-agent", "side", "main-summary", "main"]
    trainable = [
        n.trainable async for n in Node.objects.filter(rollout=session.rollout_id, sampled=True).order_by("index")
    ]
    assert trainable == [True, False, True, False, True, True]


async def test_other_tools_are_another_root(world):
    session = await world.session()
    async with world.client(session) as client:
        await ask(client, [INSTRUCTION], tools=TOOLS)
        await ask(client, [INSTRUCTION])
    assert await Node.objects.filter(rollout=session.rollout_id, parent=None).acount() == 2


async def test_ids_that_no_tokenizer_would_choose_are_never_encoded_again(world):
    """Sampled ids that decode to broken UTF-8: the text cannot give them back, the tree still does."""
    session = await world.session()
    odd = [0xC3, 0x28, 0xFF, *b"ok", 257]
    world.engine.rule = lambda prompt: odd if prompt.number == 0 else "done"
    async with world.client(session) as client:
        answer = await ask(client, [INSTRUCTION])
        await ask(client, [INSTRUCTION, echo(answer), {"role": "user", "content": "next"}])
    prompt = world.engine.requests[1].prompt
    assert bytes(odd[:3]) in bytes(i % 256 for i in prompt)
    assert prompt[: len(world.engine.requests[0].prompt) + len(odd)] == world.engine.requests[0].prompt + odd
    assert await identity(session.rollout_id, [world.engine]) == 2


def test_a_full_rendering_keeps_the_longest_exact_prefix():
    def node(index, ids):
        return TreeNode(index=index, parent=index - 1 if index else None, depth_tokens=0, key=b"", role="user",
                        branch_role="main", sampled=False, ids=pack(ids))  # fmt: skip

    path = [node(0, [1, 2]), node(1, [3, 4])]
    assert match_prefix(path, [[1, 2], [3, 4, 5], [6]]) == (2, [[5, 6]])
    assert match_prefix(path, [[1, 2], [3, 9], [6]]) == (1, [[3, 9], [6]])
    assert match_prefix(path, [[7], [3]]) == (0, [[7], [3]])


TEXT = st.text(alphabet="ab \n<é😀", max_size=6)


@st.composite
def scripts(draw):
    """A harness that grows its history, and edits, drops, repeats or restarts it."""
    return [
        (draw(st.sampled_from(["go", "go", "go", "edit", "drop", "repeat", "restart", "rewrite", "tail"])), draw(TEXT), draw(TEXT))
        for _ in range(draw(st.integers(1, 7)))
    ]  # fmt: skip


def play(action, text, history):
    """The next history that this harness sends."""
    own = [i for i, message in enumerate(history) if message["role"] == "assistant"]
    if action == "restart":
        return [{"role": "user", "content": text}]
    if action == "repeat" or not own:
        return history[: own[-1]] if own else history
    if action == "drop":
        return [*history[: own[-1]], {"role": "user", "content": text}]
    if action == "edit":
        return [
            *history[: own[-1]],
            {"role": "assistant", "content": "edited " + text},
            {"role": "user", "content": "u"},
        ]
    if action == "tail":
        return history[: own[-1] + 1]
    last = dict(history[own[-1]])
    if action == "rewrite":
        last["content"] = f" {last.get('content') or ''} "
        if last.get("tool_calls"):
            last["tool_calls"] = [c | {"function": {"name": "n", "arguments": "{}"}} for c in last["tool_calls"]]
    tools = [{"role": "tool", "tool_call_id": c["id"], "content": text} for c in last.get("tool_calls") or ()]
    return [*history[: own[-1]], last, *(tools or [{"role": "user", "content": text}])]


async def run_script(world, script):
    session = await world.session(sampling={"max_tokens": 40})
    answers = iter([answer for _, _, answer in script])

    def rule(prompt):
        text = next(answers)
        return CALL + text if "a" in text else text

    world.engine.rule = rule
    history = [{"role": "user", "content": INSTRUCTION}]
    async with world.client(session) as client:
        for action, text, _ in script:
            history = play(action, text, history)
            history = [*history, echo(await ask(client, history, tools=TOOLS))]
    assert await identity(session.rollout_id, [world.engine]) == len(script)
    calls = [call async for call in Call.objects.filter(rollout=session.rollout_id)]
    assert all(call.state == "completed" for call in calls)


async def test_what_was_seen_is_what_is_recorded_for_any_harness(world):
    """Token identity, as a property: every branch's ids are what the engine saw and produced."""
    loop = asyncio.get_running_loop()

    @settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
    @given(scripts())
    def check(script):
        asyncio.run_coroutine_threadsafe(run_script(world, script), loop).result(60)

    await asyncio.to_thread(check)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(scripts())
def test_every_plan_continues_from_an_exact_prefix(script):
    """The same without a server: the prompt of each plan ends with what the request says."""
    tree, renderer = Tree(), ScriptedRenderer()
    history = [{"role": "user", "content": INSTRUCTION}]
    for action, text, answer in script:
        history = [dict(m) for m in play(action, text, history)]
        request = Request(dialect="chat", messages=history, tools=[], stream=False, requested={}, unknown={})
        plan = tree.plan(request, renderer)
        parent = plan.parent
        for addition in plan.additions:
            tree.add(context_node(tree, addition, parent, branch_role="main", agent=""))
            parent = len(tree.nodes) - 1
        prompt = tree.prompt_ids(parent, plan.opener).tolist()
        assert len(tree.path(parent)) == len(history)
        assert prompt[-1] == 258
        ids = [258, *answer.encode(), 257]
        message = renderer.parse(ids[1:])
        tree.add(TreeNode(index=len(tree.nodes), parent=parent, depth_tokens=len(prompt) - 1,
                          key=tree.answer_key(parent, message), role="assistant", branch_role="main", sampled=True,
                          ids=pack(ids), message=message))  # fmt: skip
        assert unpack(b"".join(n.ids for n in tree.path(len(tree.nodes) - 1)))[: len(prompt)] == prompt
        history = [*history, message]
