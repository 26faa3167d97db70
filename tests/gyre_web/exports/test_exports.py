"""From a filter and people's labels to data sets and exports, by page and REST."""

import io
import zipfile

import orjson
import pytest
from django.core.management import CommandError, call_command

from environments.models import Rollout
from gyre_web.exports import items
from gyre_web.review.services import Judgement, save_label
from tests.gyre_web.factories import make_run, make_user
from training.exports import writer
from training.models import Dataset, Export, Member, Run

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def no_job(settings, tmp_path, monkeypatch):
    """The job is run by the test."""
    settings.DATA_DIR = tmp_path / "data"
    monkeypatch.setattr("training.exports.services.enqueue", lambda export: None)


@pytest.fixture
def run():
    return make_run(steps=2).run


def label(rollout, author, **fields):
    return save_label(
        rollout=rollout, author=author, judgement=Judgement(client_key=f"{author.pk}-{rollout.pk}"[:40], **fields)
    )


def ended(run):
    return list(items.chosen_rollouts(items.build_choice({}, run)))


def test_reward_means_the_judged_one(run):
    rollout = next(each for each in ended(run) if each.reward == 0.0)
    Member.objects.filter(rollout=rollout).update(effective_reward=1.0)
    chosen = items.rollout_items(items.build_choice({"reward_min": "1"}, run))
    assert str(rollout.pk) in [each["rollout"] for each in chosen]
    assert all(each["reward"] >= 1 for each in chosen)


def test_what_people_kept_can_be_chosen_and_is_frozen_with_the_item(run):
    ann, bob = make_user("ann", "reviewer"), make_user("bob", "reviewer")
    one, two, three = ended(run)[:3]
    label(one, ann, keep="keep", turns={"2": True})
    label(two, ann, keep="keep")
    label(two, bob, keep="drop", reason="no")
    label(three, bob, keep="drop", reason="no")
    kept = items.rollout_items(items.build_choice({"kept": "keep"}, run))
    assert {each["rollout"]: each["kept"] for each in kept} == {str(one.pk): True, str(two.pk): None}
    assert next(each for each in kept if each["rollout"] == str(one.pk))["turns"] == {"2": True}


def test_the_page_makes_a_data_set_that_a_run_can_be_started_with(run, sign_in):
    client = sign_in("operator")
    answer = client.post(
        "/exports/make", {"what": "dataset:rollouts", "name": "good", "run": run.pk, "reward_min": "1"}
    )
    assert answer.status_code == 302
    dataset = Dataset.objects.get()
    rewards = set(Rollout.objects.filter(pk__in=dataset.items).values_list("reward", flat=True))
    assert (rewards, dataset.query) == ({1.0}, {"run": run.name, "reward_min": "1"})
    page = client.get("/runs/new?kind=supervised&supervised.dataset=good").content.decode()
    assert "<option selected>good</option>" in page


def test_everything_wrong_is_said_beside_the_form(run, sign_in):
    client = sign_in("reviewer")
    page = client.post("/exports/make", {"what": "dataset:pairs", "name": "p"})
    assert page.status_code == 422
    assert "Judge some first" in page.content.decode()
    page = client.post("/exports/make", {"what": "export:sft", "name": "p", "reward_min": "much"})
    assert page.status_code == 422


def test_rest_makes_follows_and_downloads_an_export(run, sign_in):
    client = sign_in("reviewer")
    body = {"name": "all good", "format": "sft", "run": str(run.pk), "filter": {"reward_min": 1}}
    made = client.post("/api/exports", orjson.dumps(body), content_type="application/json")
    assert made.status_code == 201, made.content
    pk = made.json()["id"]
    assert client.get(f"/api/exports/{pk}/file").status_code == 404
    writer.write_export(Export.objects.get().pk, owner="me")
    done = client.get(f"/api/exports/{pk}").json()
    assert done["state"] == "done"
    answer = client.get(f"/api/exports/{pk}/file")
    with zipfile.ZipFile(io.BytesIO(b"".join(answer.streaming_content))) as archive:
        lines = archive.read("data.jsonl").splitlines()
    assert len(lines) > 0
    assert len(lines) + sum(done["left_out"].values()) == made.json()["total"]
    wrong = client.post("/api/exports", orjson.dumps({**body, "format": "csv"}), content_type="application/json")
    assert (wrong.status_code, wrong.json()["errors"][0]["field"]) == (422, "format")


def test_rest_makes_a_data_set_and_says_what_was_left_out(run, sign_in):
    client = sign_in("reviewer")
    body = {"name": "d", "kind": "rollouts", "run": str(run.pk)}
    made = client.post("/api/datasets", orjson.dumps(body), content_type="application/json").json()
    assert made["num_items"] > 0
    assert client.get("/api/datasets").json()[0]["name"] == "d"
    again = client.post("/api/datasets", orjson.dumps(body), content_type="application/json")
    assert (again.status_code, again.json()["errors"][0]["field"]) == (422, "name")


def test_only_its_maker_or_an_operator_deletes_an_export(run, sign_in):
    export = items.make_export(
        name="e", form="sft", choice=items.build_choice({}, run), author=make_user("ann", "reviewer")
    )
    sign_in("reviewer").post(f"/exports/{export.pk}/delete")
    assert Export.objects.exists()
    sign_in("operator").post(f"/exports/{export.pk}/delete")
    assert not Export.objects.exists()
    assert Run.objects.exists()


def test_the_command_freezes_a_selection_and_names_what_is_wrong(run, capsys):
    make_user("root", "admin")
    call_command("dataset", "good", filter=["reward_min=1"], run=run.name)
    assert f"good: {Dataset.objects.get().num_items} items" in capsys.readouterr().out
    for arguments, words in (
        ({"filter": ["colour=red"]}, "Fields: q,"),
        ({"filter": ["reward_min=much"]}, "reward_min"),
        ({"run": "nobody's"}, "no run called"),
        ({"kind": "pairs"}, "Judge some first"),
    ):
        with pytest.raises(CommandError, match=words):
            call_command("dataset", "other", **arguments)
