"""Exports: each format's lines from a recorded rollout, and the job that writes them."""

import json
import zipfile
from datetime import timedelta
from uuid import uuid4

import numpy as np
import pytest
from django.utils import timezone

from environments.models import Node
from tests.training.attempts import make_attempt, make_rollout, request_step
from training.exports import services, writer
from training.exports.formats import NoLine, dpo_line
from training.exports.record import load_record
from training.models import Export

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def data_directory(settings, tmp_path):
    settings.DATA_DIR = tmp_path / "data"


MESSAGES = (
    {"role": "user", "content": "List the files.\ue000"},
    {
        "role": "assistant",
        "content": "I look.",
        "reasoning": "first look",
        "tool_calls": [{"id": "c1", "name": "bash", "arguments": '{"command": "ls"}'}],
    },
    {"role": "tool", "content": "a.py", "tool_call_id": "c1"},
    {"role": "assistant", "content": "done"},
)


@pytest.fixture
def attempt(tmp_path):
    return make_attempt(tmp_path)


def recorded(attempt, seed=3, last="done", reward=1.0):
    rollout = make_rollout(attempt, seed, reward=reward)
    for index, message in enumerate(MESSAGES):
        message = {**message, "content": last} if index == 3 else message
        Node.objects.filter(rollout=rollout, index=index).update(message=message, role=message["role"])
    return rollout


def written(export):
    writer.write_export(export.pk, owner="me")
    export.refresh_from_db()
    assert export.state == Export.State.DONE, export.error
    with zipfile.ZipFile(export.path) as archive:
        provenance = json.loads(archive.read("provenance.json"))
        if export.format == "atif":
            names = [name for name in archive.namelist() if name.startswith("trajectories/")]
            return [json.loads(archive.read(name)) for name in names], provenance
        return [json.loads(line) for line in archive.read("data.jsonl").splitlines()], provenance


def export(form, *items):
    return services.make_export(name="e", form=form, items=list(items), query={"reward_min": 1}, made_by="ann")


def item(rollout, **more):
    return {"rollout": str(rollout.pk), "reward": rollout.reward, "kept": None, "turns": {}, **more}


def test_sft_lines_are_conversations_with_what_is_trained_marked(attempt):
    rollout = recorded(attempt)
    [line], provenance = written(export("sft", item(rollout)))
    assert line["trained"] == [False, True, False, True]
    assert line["messages"][1]["tool_calls"][0]["function"] == {"name": "bash", "arguments": '{"command": "ls"}'}
    assert line["messages"][1]["reasoning_content"] == "first look"
    assert line["messages"][2]["tool_call_id"] == "c1"
    assert line["provenance"]["rollout"] == str(rollout.pk)
    assert (provenance["filter"], provenance["person"], provenance["num_items"]) == ({"reward_min": 1}, "ann", 1)


def test_token_lines_are_the_ids_masks_logprobs_and_versions_of_the_record(attempt):
    rollout = recorded(attempt)
    [line], _ = written(export("tokens", item(rollout)))
    nodes = list(Node.objects.filter(rollout=rollout).order_by("index"))
    assert line["token_ids"] == [i for node in nodes for i in np.frombuffer(bytes(node.ids), "<u4").tolist()]
    assert sum(line["loss_mask"]) == 4 + 5
    for token, (mask, logprob) in enumerate(zip(line["loss_mask"], line["behaviour_logprobs"], strict=True)):
        assert (logprob is not None) == bool(mask), token
    assert [version for _, _, version in line["version_spans"]] == [0, 0]
    first = line["messages"][1]
    assert line["token_ids"][first["start"] : first["end"]] == np.frombuffer(bytes(nodes[1].ids), "<u4").tolist()


@pytest.mark.parametrize(
    ("kept", "reward", "label", "by"), [(None, 1.0, True, "reward"), (False, 1.0, False, "person")]
)
def test_kto_says_whose_word_the_label_is(attempt, kept, reward, label, by):
    [line], _ = written(export("kto", item(recorded(attempt, reward=reward), kept=kept)))
    assert (line["label"], line["label_by"]) == (label, by)
    assert ([m["role"] for m in line["prompt"]], len(line["completion"])) == (["user"], 3)


def test_prm_lines_hold_marks_where_people_made_them_and_null_elsewhere(attempt):
    rollout = recorded(attempt)
    [line], _ = written(export("prm", item(rollout, turns={"3": False})))
    assert [(turn["node"], turn["label"]) for turn in line["turns"]] == [(1, None), (3, False)]
    assert [len(turn["messages"]) for turn in line["turns"]] == [2, 1]


def test_dpo_lines_share_the_prompt_up_to_the_first_different_message(attempt):
    good, bad = recorded(attempt, 3, "right"), recorded(attempt, 4, "wrong", reward=0.0)
    pair = {"chosen": str(good.pk), "rejected": str(bad.pk), "judged_by": ["ann"], "reason": "it works"}
    [line], _ = written(export("dpo", pair))
    assert (len(line["prompt"]), line["chosen"], line["rejected"]) == (
        3, [{"role": "assistant", "content": "right"}], [{"role": "assistant", "content": "wrong"}],
    )  # fmt: skip
    assert line["judgement"] == {"judged_by": ["ann"], "reason": "it works"}
    record = load_record(good.pk, max_branches=9)
    with pytest.raises(NoLine, match="beginning of the other"):
        dpo_line(record, record, {})


def test_atif_files_pass_the_formats_own_models(attempt):
    from atif import Trajectory

    rollout = recorded(attempt)
    [trajectory], _ = written(export("atif", item(rollout)))
    checked = Trajectory.model_validate(trajectory)
    assert [step.source for step in checked.steps] == ["user", "agent", "agent"]
    assert trajectory["steps"][1]["observation"]["results"] == [{"content": "a.py", "source_call_id": "c1"}]
    metrics = trajectory["steps"][2]["metrics"]
    assert len(metrics["completion_token_ids"]) == len(metrics["logprobs"]) == 5


def test_what_gives_no_line_is_counted_by_its_reason(attempt):
    scored, silent = recorded(attempt), recorded(attempt, 9, reward=None)
    made = export("kto", item(scored), item(silent), {"rollout": str(uuid4())})
    lines, provenance = written(made)
    made.refresh_from_db()
    assert len(lines) == 1
    assert made.left_out == {"neither kept nor dropped, and never scored": 1, "the rollout was deleted": 1}
    assert provenance["left_out"] == made.left_out


def test_one_writer_writes_and_a_lost_one_is_followed_by_another(attempt):
    made = export("sft", item(recorded(attempt)))
    held = timezone.now() + timedelta(seconds=30)
    Export.objects.filter(pk=made.pk).update(state="writing", lease_owner="other", lease_expires_at=held, done=7)
    writer.write_export(made.pk, owner="me")
    made.refresh_from_db()
    assert (made.state, made.lease_owner) == ("writing", "other")
    lost = timezone.now() - timedelta(seconds=1)
    Export.objects.filter(pk=made.pk).update(lease_expires_at=lost, created_at=lost - timedelta(minutes=1))
    assert writer.waiting_exports() == [made.pk]
    lines, _ = written(made)
    assert len(lines) == 1
    assert writer.waiting_exports() == []


def test_a_writer_that_lost_its_lease_leaves_no_file(attempt, monkeypatch):
    made = export("sft", item(recorded(attempt)))

    def taken_over(*args):
        raise writer.LeaseLost

    monkeypatch.setattr(writer, "renew", taken_over)
    writer.write_export(made.pk, owner="me")
    assert list(writer.export_path(made.pk).parent.iterdir()) == []


def test_a_full_disk_fails_the_export_with_what_to_do_and_leaves_no_file(attempt, monkeypatch):
    made = export("sft", item(recorded(attempt)))

    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(writer, "write_zip", full)
    writer.write_export(made.pk, owner="me")
    made.refresh_from_db()
    assert made.state == "failed"
    assert "no room" in made.error
    assert list(writer.export_path(made.pk).parent.iterdir()) == []


def test_advantages_and_run_are_on_the_lines_of_members(attempt):
    step = request_step(attempt, 1)
    rollout = step.groups.first().members.first().rollout
    [line], _ = written(export("tokens", item(rollout)))
    assert line["provenance"]["run"] == "demo/1"


@pytest.mark.parametrize(
    ("form", "name", "field"), [("zip", "x", "format"), ("sft", "", "name"), ("sft", "x", "filter")]
)
def test_what_is_wrong_with_an_export_is_named(form, name, field):
    with pytest.raises(services.ExportRefused) as refused:
        services.make_export(name=name, form=form, items=[{"rollout": "x"}] if field == "name" else [], query={})
    assert refused.value.field == field
