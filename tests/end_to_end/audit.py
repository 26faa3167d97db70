"""What must hold after a run, whatever was killed during it: the bytes that others saw against the rows.

From:  tests.end_to_end and tests.drills, with an attempt that is over.
To:    an AssertionError that names the row.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from django.db.models import Q

from environments.models import Call, Engine, Node, Outcome, Rollout, Sandbox
from environments.scripted.engine import logprob_of
from tests.end_to_end.tiny import TinySystem
from training.models import Attempt, Cell, Group, Member, Metric, OptimizerStep, Version


def check_everything(system: TinySystem, attempt: Attempt) -> None:
    attempt.refresh_from_db()
    assert (attempt.state, attempt.state_reason) == (Attempt.State.COMPLETED, "")
    rollouts = rollouts_of(attempt)
    said = read_audit(system.audit)
    for rollout in rollouts:
        check_end(rollout)
        check_record(rollout)
        check_harness_saw_what_is_recorded(rollout)
        check_tokens(rollout, said)
    check_nothing_was_asked_for_nobody(said)
    check_groups(attempt)
    check_members(attempt)
    check_steps(attempt)
    check_versions(attempt)


def rollouts_of(attempt: Attempt) -> list[Rollout]:
    return list(Rollout.objects.filter(Q(pool=attempt.pool) | Q(pool=f"{attempt.pool}-expert")))


# Rollouts.


def check_end(rollout: Rollout) -> None:
    assert rollout.state == Rollout.State.ENDED, rollout.pk
    assert rollout.outcome, rollout.pk
    assert rollout.outcome == Outcome.COMPLETED, (rollout.pk, rollout.outcome, rollout.error, rollout.harness_output)
    assert rollout.reward is not None, (rollout.pk, rollout.error)
    assert rollout.sessions.exists(), rollout.pk
    assert not rollout.sessions.filter(finished_at=None).exists(), rollout.pk
    assert rollout.lease_expires_at is None, rollout.pk


def check_record(rollout: Rollout) -> None:
    """Each call once, each node once, counters as the rows say."""
    calls = list(Call.objects.filter(rollout=rollout).order_by("index"))
    nodes = list(Node.objects.filter(rollout=rollout).order_by("index"))
    assert [call.index for call in calls] == list(range(len(calls))), rollout.pk
    assert [node.index for node in nodes] == list(range(len(nodes))), rollout.pk
    assert {call.state for call in calls} <= {"completed"}, [(call.index, call.state, call.error) for call in calls]
    twice = Counter((node.parent, bytes(node.key)) for node in nodes)
    assert max(twice.values()) == 1, rollout.pk
    answers = sorted(call.answer_node for call in calls if call.answer_node is not None)
    assert answers == [node.index for node in nodes if node.sampled], rollout.pk
    assert rollout.num_calls == len(calls), rollout.pk
    assert rollout.num_branches == 1, rollout.pk
    assert rollout.sampled_tokens == sum(call.num_sampled_tokens for call in calls), rollout.pk
    for node in nodes:
        above = nodes[node.parent] if node.parent is not None else None
        assert node.depth_tokens == (above.depth_tokens + len(ids_of(above)) if above else 0), (rollout.pk, node.index)


def path_of(nodes: list[Node], index: int | None) -> list[Node]:
    path = []
    while index is not None:
        path.append(nodes[index])
        index = nodes[index].parent
    return path[::-1]


def check_harness_saw_what_is_recorded(rollout: Rollout) -> None:
    """The program prints each message that it sends and gets: they are the branch, in order, and nothing else."""
    nodes = list(Node.objects.filter(rollout=rollout).order_by("index"))
    told = "".join(
        f"{node.message['role']}:\n{node.message['content']}\n\n" for node in path_of(nodes, nodes[-1].index)
    )
    assert rollout.harness_output.startswith(told), (rollout.pk, told, rollout.harness_output)
    assert "assistant:\n" not in rollout.harness_output[len(told) :], (rollout.pk, rollout.harness_output)


# Tokens.


def read_audit(path: Path) -> dict[str, list[list[int]]]:
    """Hex of a call -> what the engine saw and produced, one list of ids for each time it was asked."""
    texts: dict[str, list[int]] = {}
    for line in path.read_bytes().splitlines():
        entry = json.loads(line)
        if "prompt" in entry:
            texts[entry["request"]] = list(entry["prompt"])
        else:
            texts[entry["request"]] += entry["ids"]
    by_call = defaultdict(list)
    for name, ids in texts.items():
        by_call[name.split("-")[2]].append(ids)
    return by_call


def ids_of(node: Node) -> list[int]:
    return [int(i) for i in np.frombuffer(bytes(node.ids), dtype="<u4")]


def check_tokens(rollout: Rollout, said: dict[str, list[list[int]]]) -> None:
    """Seen = recorded, on every branch; logprobs and versions for each sampled token and for no other."""
    nodes = list(Node.objects.filter(rollout=rollout).order_by("index"))
    by_expert = rollout.purpose == Rollout.Purpose.DEMONSTRATION
    for call in Call.objects.filter(rollout=rollout):
        assert call.answer_node is not None, (rollout.pk, call.index)
        node = nodes[call.answer_node]
        branch = [i for each in path_of(nodes, node.index) for i in ids_of(each)]
        assert by_expert or branch in said[call.id.hex], (rollout.pk, call.index, "seen and recorded differ")
        sampled = ids_of(node)[node.opener_length :]
        assert call.num_sampled_tokens == len(sampled)
        covered = [p for start, end, _ in node.version_spans for p in range(start, end)]
        assert covered == list(range(node.opener_length, node.opener_length + len(sampled))), node.version_spans
        if by_expert:
            assert node.behaviour_logprobs is None
        else:
            wanted = np.array([logprob_of(i) for i in sampled], dtype="<f4")
            assert bytes(node.behaviour_logprobs or b"") == wanted.tobytes(), (rollout.pk, call.index)


def check_nothing_was_asked_for_nobody(said: Iterable[str]) -> None:
    known = {pk.hex for pk in Call.objects.values_list("pk", flat=True)}
    assert set(said) <= known


# Learning.


def check_groups(attempt: Attempt) -> None:
    """Eaten exactly once, by a step that was done; or excluded, with a reason."""
    groups = list(Group.objects.filter(attempt=attempt).select_related("step"))
    for group in groups:
        if group.state == Group.State.EXCLUDED:
            assert group.reason, group.index
            assert group.step is None or group.step.state != OptimizerStep.State.DONE, group.index
        else:
            assert group.state == Group.State.EATEN, (group.index, group.state, group.reason)
            assert group.step is not None, group.index
            assert group.step.state == OptimizerStep.State.DONE, group.index
    wanted = attempt.config["tasks"]["groups_per_step"] * attempt.config["optimization"]["steps"]
    assert sum(group.state == Group.State.EATEN for group in groups) == wanted


def check_members(attempt: Attempt) -> None:
    members = list(Member.objects.filter(group__attempt=attempt).select_related("group", "rollout"))
    for member in members:
        where = (member.group.index, member.slot, member.disposition)
        if member.disposition == Member.Disposition.EXCLUDED:
            assert member.reason, where
            continue
        assert member.disposition == Member.Disposition.TRAINED, where
        assert member.group.state == Group.State.EATEN, where
        assert member.advantage is not None, where
        assert member.staleness is not None, where
        assert member.trained_tokens == member.rollout.sampled_tokens, where
    trained = Counter(m.group_id for m in members if m.disposition == Member.Disposition.TRAINED)
    assert set(trained.values()) == {attempt.config["tasks"]["rollouts_per_group"]}
    assert attempt.consumed_rollouts == len({(m.group_id, m.slot) for m in members})
    pool = Rollout.objects.filter(pool=attempt.pool, purpose=Rollout.Purpose.TRAIN)
    assert set(pool.values_list("pk", flat=True)) == {m.rollout_id for m in members}


def check_steps(attempt: Attempt) -> None:
    steps = list(attempt.optimizer_steps.filter(kind=OptimizerStep.Kind.POLICY).order_by("number"))
    wanted = range(1, attempt.config["optimization"]["steps"] + 1)
    assert [(step.number, step.state) for step in steps] == [(number, "done") for number in wanted]
    assert attempt.step == wanted[-1]
    for step in steps:
        assert step.groups.count() == attempt.config["tasks"]["groups_per_step"], step.number
        keys = set(
            Metric.objects.filter(attempt=attempt, kind="policy", step=step.number).values_list("key", flat=True)
        )
        assert {"reward_mean", "train_s", "generation_s"} <= keys, (step.number, sorted(keys))


def check_versions(attempt: Attempt) -> None:
    versions = list(Version.objects.filter(attempt=attempt).order_by("number"))
    assert [version.number for version in versions] == list(range(attempt.config["optimization"]["steps"] + 1))
    assert all(version.published_at for version in versions)
    assert attempt.version == versions[-1].number
    for version in (versions[0], versions[-1]) if attempt.config["evaluation"]["tasks"] else ():
        assert version.evaluation["heldout"]["state"] == "done", version.number
        assert version.evaluation["heldout"]["missing"] == 0, version.evaluation
    assert Metric.objects.filter(attempt=attempt, kind="supervised", key="loss").exists()


# What is left.


def check_nothing_is_left(system: TinySystem, attempt: Attempt) -> None:
    """Of a run that is over, in a system that goes on."""
    from environments.sandboxes.reaper import running_sandboxes

    system.wait_for(
        lambda: not attempt.cells.exclude(role=Cell.Role.DOWN).exists(), "its cells give everything back", 60.0
    )
    directories = system.root / "data" / "sandboxes"
    system.wait_for(lambda: not running_sandboxes(), "no sandbox runs", 90.0)
    system.wait_for(lambda: not list(directories.iterdir()), "no sandbox's directory is left", 90.0)
    assert not Sandbox.objects.filter(rollout__in=rollouts_of(attempt), stopped_at=None).exists()
    pools = (attempt.pool, f"{attempt.pool}-expert")
    over = (Engine.State.STOPPED, Engine.State.FAILED)
    assert not Engine.objects.filter(pool__in=pools).exclude(state__in=over).exists()
    assert not list((system.root / "rt" / "engines").iterdir())
    words = ("environments.scripted.engine", "trainer", "gyre-sandbox:")
    assert not [p for p in system.processes() if any(word in " ".join(p.cmdline()) for word in words)]
