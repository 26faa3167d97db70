"""The catalog and the cluster page."""

import pytest
from django.test.utils import CaptureQueriesContext

from environments.models import Task
from gyre_web.catalog.selectors import list_tasks, load_files, pass_rates_by_version
from tests.gyre_web.factories import make_catalog, make_run

pytestmark = pytest.mark.django_db


def test_the_pass_rate_counts_scored_rollouts_and_not_demonstrations():
    attempt = make_run(steps=1, groups_per_step=1, nodes=False)
    group = attempt.groups.first()
    rollouts = [member.rollout for member in group.members.all()]
    for rollout, reward in zip(rollouts, (1.0, 0.0, 1.0, None, 0.0, 1.0), strict=True):
        rollout.reward, rollout.newest_version = reward, 0
        rollout.purpose = "demonstration" if rollout is rollouts[-1] else "train"
        rollout.save()
    for other in attempt.groups.exclude(pk=group.pk):
        for member in other.members.all():
            member.rollout.reward = None
            member.rollout.save()

    task = list_tasks({}).get(pk=group.task_id)

    assert (task.num_passed, task.num_scored) == (2, 4)
    assert pass_rates_by_version(group.task) == [{"version": 0, "scored": 4, "passed": 2, "rate": 0.5}]


def test_a_tasks_files_are_read_by_role_and_links_are_not_followed(tmp_path):
    make_catalog()
    (tmp_path / "tests").mkdir()
    (tmp_path / "solution").mkdir()
    (tmp_path / "instruction.md").write_text("do it")
    (tmp_path / "tests" / "test.sh").write_text("exit 0")
    (tmp_path / "solution" / "solve.bin").write_bytes(b"\xff\x00")
    (tmp_path / "tests" / "secret").symlink_to("/etc/passwd")
    task = Task.objects.first()
    task.directory = str(tmp_path)

    files = load_files(task)

    assert [(file.path, file.text) for file in files.tests] == [("tests/test.sh", "exit 0")]
    assert files.solution[0].text is None
    assert not files.missing


def test_a_missing_directory_is_said(sign_in):
    make_catalog()

    page = sign_in("viewer").get(f"/tasks/{Task.objects.first().pk}").content.decode()

    assert "not on this machine" in page


def test_the_task_list_filters_and_costs_the_same_for_more_tasks(sign_in):
    from django.db import connection

    make_catalog(num_tasks=40)
    client = sign_in("viewer")
    assert client.get("/tasks?family=create").context["pager"].total == 4
    assert client.get("/tasks?split=heldout").context["pager"].total == 10
    assert client.get("/tasks?q=notes-7.txt").context["pager"].total == 1
    with CaptureQueriesContext(connection) as one:
        client.get("/tasks?q=notes-7.txt")
    with CaptureQueriesContext(connection) as many:
        client.get("/tasks")
    assert len(one) == len(many) <= 9


def test_models_and_harnesses_say_what_was_not_recorded(sign_in):
    model, _, _ = make_catalog()
    model.settings = {}
    model.save()

    assert b"not recorded" in sign_in("viewer").get("/models").content
    assert b"mini-swe-agent" in sign_in("viewer").get("/harnesses").content


def test_the_cluster_page_shows_what_waits_and_why(sign_in):
    make_run(steps=1, groups_per_step=2)

    page = sign_in("viewer").get("/cluster").content.decode()

    assert "review gate: sampled" in page
    assert "nobody leads" in page.lower()
    assert "cell 0" in page


def test_the_cluster_page_stands_when_valkey_does_not_answer(sign_in, settings):
    settings.REDIS_URL = "redis://127.0.0.1:1/0"

    assert b"Valkey does not answer" in sign_in("viewer").get("/cluster").content


def test_the_harness_page_says_what_is_known_of_a_program_and_what_was_seen(sign_in):
    from environments.models import Harness

    attempt = make_run(steps=1, groups_per_step=1)
    rollout = attempt.groups.first().members.first().rollout
    rollout.drift = {"arguments": 7}
    rollout.save()
    Harness.objects.create(name="claude", program="claude-code", version="2.1.197", settings={"bare": True})
    Harness.objects.create(name="old", program="codex", version="0.1", settings={"gone": 1})

    page = sign_in("viewer").get("/harnesses").content.decode()

    assert "claude -p --output-format stream-json" in page
    assert "--bare" in page
    assert "proprietary" in page
    assert '<td>arguments</td><td class="num">7</td>' in page
    assert "<td>main</td>" in page
    assert "gone: Extra inputs are not permitted" in page
    assert "copy and change" not in page


def test_a_command_is_added_from_the_browser_and_can_be_chosen_for_runs(sign_in):
    from environments.models import Harness
    from gyre_web.audit.models import AuditEntry

    client = sign_in("operator")
    assert client.get("/harnesses/new?program=command").status_code == 200
    posted = {
        "program": "command",
        "name": "mine",
        "delivery": "stream",
        "settings.command": 'agent --url @BASE_URL@/v1 "$GYRE_INSTRUCTION"',
        "settings.environment": '{"A": "b"}',
        "settings.files": "{}",
        "settings.model_name": "gyre",
    }

    assert client.post("/harnesses/new", posted).status_code == 302

    harness = Harness.objects.get(name="mine")
    assert harness.settings == {"command": posted["settings.command"], "environment": {"A": "b"}}
    assert (harness.program, harness.delivery) == ("command", "stream")
    assert AuditEntry.objects.filter(action="harness.add", object_id=str(harness.pk)).exists()


def test_every_wrong_field_of_a_harness_is_named_and_nothing_is_added(sign_in):
    from environments.models import Harness

    posted = {
        "program": "pi",
        "name": "two words",
        "delivery": "pigeon",
        "settings.dialect": "smoke",
        "settings.context_tokens": "few",
        "settings.tools": "[1",
    }
    answer = sign_in("operator").post("/harnesses/new", posted)

    assert answer.status_code == 422
    assert set(answer.context["problems"]) == {"name", "delivery", "dialect", "context_tokens", "tools"}
    assert b'value="two words"' in answer.content
    assert not Harness.objects.filter(program="pi").exists()


def test_a_harness_is_copied_with_its_settings_under_another_name(sign_in):
    from environments.models import Harness

    source = Harness.objects.create(name="mine", program="command", settings={"command": "run --me <now>"})

    page = sign_in("operator").get(f"/harnesses/new?from={source.pk}").content.decode()

    assert 'value="mine-2"' in page
    assert "run --me &lt;now&gt;" in page
    assert sign_in("operator").get("/harnesses/new?from=nonsense").status_code == 404


def test_a_set_has_an_address_with_its_versions_and_its_solution_check(sign_in):
    from django.utils import timezone

    from environments.models import TaskSet

    make_catalog(num_tasks=4)
    first, second, *_ = Task.objects.all()
    good = {"problems": [], "solution": 1, "nothing": 0}
    Task.objects.filter(pk=first.pk).update(checked_at=timezone.now(), check_result=good)
    wrong = {"problems": ["the solution earns reward 0."], "solution": 0, "nothing": 0, "log": "<b>no</b>"}
    Task.objects.filter(pk=second.pk).update(checked_at=timezone.now(), check_result=wrong)
    TaskSet.objects.create(
        name="shell-and-python@2", base_name="shell-and-python", version=2, source="x", digest="1", directory="/x"
    )
    client = sign_in("viewer")

    page = client.get("/tasks/sets/shell-and-python").content.decode()

    assert "1 of 2 wrong" in page
    assert "/tasks/sets/shell-and-python@2" in page
    assert client.get("/tasks/sets/shell-and-python?check=wrong").context["pager"].total == 1
    assert client.get("/tasks/sets/shell-and-python?check=good").context["pager"].total == 1
    assert client.get("/tasks/sets/shell-and-python?check=never").context["pager"].total == 2
    assert client.get("/tasks/sets/unheard-of").status_code == 404
    shown = client.get(f"/tasks/{second.pk}").content.decode()
    assert "The solution earns reward 0." in shown
    assert "<b>no</b>" not in shown


def test_the_solution_is_behind_a_control_and_an_instruction_is_text(sign_in, tmp_path):
    make_catalog()
    (tmp_path / "solution").mkdir()
    (tmp_path / "solution" / "solve.sh").write_text("echo secret")
    task = Task.objects.first()
    task.directory, task.instruction = str(tmp_path), "<script>alert(1)</script>"
    task.save()

    page = sign_in("viewer").get(f"/tasks/{task.pk}").content.decode()

    assert "<script>alert(1)</script>" not in page
    before, _, after = page.partition("Show the solution")
    assert "echo secret" not in before
    assert "echo secret" in after
    assert '<details class="files-control"><summary' in before


def test_the_pass_rate_by_harness_leaves_out_experts(sign_in):
    from gyre_web.catalog.selectors import pass_rates_by_harness

    attempt = make_run(steps=1, groups_per_step=1, nodes=False)
    task = attempt.groups.first().task
    rollouts = list(task.rollouts.all())
    task.rollouts.update(reward=0.0, purpose="train")
    for rollout, pool in zip(rollouts[:2], ("expert-mini-swe-agent", "elsewhere"), strict=True):
        rollout.reward, rollout.pool, rollout.purpose = 1.0, pool, "trial"
        rollout.save()

    (row,) = pass_rates_by_harness(task)

    assert (row["harness"], row["model"]) == ("mini-swe-agent", "smollm2-135m")
    assert (row["passed"], row["scored"]) == (1, len(rollouts) - 1)
