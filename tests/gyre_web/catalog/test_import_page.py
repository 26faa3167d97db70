"""The import page: an archive in, a task set or every problem out."""

import io

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client

from environments.models import TaskSet
from gyre_web.audit.models import AuditEntry
from tests.environments.tasksets.archive_makers import task_files, write_archive
from tests.gyre_web.factories import make_user

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def data(settings, tmp_path):
    settings.DATA_DIR = tmp_path / "data"


def upload(tmp_path, files, name="mine", suffix="zip"):
    content = write_archive(tmp_path / f"s.{suffix}", files).read_bytes()
    return {"name": name, "archive": SimpleUploadedFile(f"s.{suffix}", content)}


@pytest.mark.parametrize("suffix", ["zip", "tar.zst"])
def test_an_archive_becomes_a_task_set_and_an_audit_entry(sign_in, tmp_path, suffix):
    answer = sign_in("operator").post("/tasks/import", upload(tmp_path, task_files(), suffix=suffix))
    assert (answer.status_code, answer["Location"]) == (302, "/tasks/sets/mine")
    entry = AuditEntry.objects.get(action="taskset.import")
    assert (entry.user_name, entry.after["tasks"], entry.after["from"]) == ("a-operator", 1, f"s.{suffix}")


def test_every_problem_is_a_row_of_the_page_and_of_the_answer_to_a_script(sign_in, tmp_path):
    files = {**task_files(), "two/task.toml": b"[broken", "two/<b>.txt": b""}
    client = sign_in("operator")
    page = client.post("/tasks/import", upload(tmp_path, files))
    assert page.status_code == 422
    assert "two/task.toml" in page.content.decode()
    assert "missing-tests" in page.content.decode()
    answer = client.post("/tasks/import", upload(tmp_path, files), headers={"Accept": "application/json"})
    assert {problem["rule"] for problem in answer.json()["problems"]} >= {"invalid-toml", "missing-tests"}
    assert not TaskSet.objects.exists()


def test_markup_in_the_name_of_a_file_stays_text(sign_in, tmp_path):
    files = {**task_files(), "<script>alert(1)</script>": b"", "../<b>x</b>": b""}
    page = sign_in("operator").post("/tasks/import", upload(tmp_path, files)).content.decode()
    assert "<b>x</b>" not in page
    assert "&lt;b&gt;x&lt;/b&gt;" in page


def test_the_same_archive_again_says_so(sign_in, tmp_path):
    client = sign_in("operator")
    client.post("/tasks/import", upload(tmp_path, task_files()))
    page = client.post("/tasks/import", upload(tmp_path, task_files()), follow=True).content.decode()
    assert "there already" in page
    assert TaskSet.objects.count() == 1


@pytest.mark.parametrize("name", ["", "a b", "../up", "x" * 101])
def test_a_wrong_name_is_said_under_its_field(sign_in, tmp_path, name):
    answer = sign_in("operator").post(
        "/tasks/import", upload(tmp_path, task_files(), name=name), headers={"Accept": "application/json"}
    )
    assert answer.status_code == 422
    assert [problem["field"] for problem in answer.json()["problems"]] == ["name"]


def test_without_the_csrf_token_nothing_is_imported(tmp_path):
    client = Client(enforce_csrf_checks=True)
    client.force_login(make_user("o", "operator"))
    assert client.post("/tasks/import", upload(tmp_path, task_files())).status_code == 403
    assert not TaskSet.objects.exists()


@pytest.mark.parametrize(("role", "status"), [("viewer", 403), ("reviewer", 403), ("operator", 302), ("admin", 302)])
def test_only_an_operator_may_import(sign_in, tmp_path, role, status):
    assert sign_in(role).post("/tasks/import", upload(tmp_path, task_files())).status_code == status


async def test_a_body_beyond_the_bound_is_refused_before_it_is_read():
    from gyre_web.body_limit import BodyLimit

    sent, reached = [], []

    async def application(scope, receive, send):
        while (message := await receive())["type"] == "http.request" and message.get("more_body"):
            reached.append(len(message["body"]))
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def send(message):
        sent.append(message)

    async def endless():
        return {"type": "http.request", "body": b"x" * (1 << 20), "more_body": True}

    limit = BodyLimit(application, upload_bytes=3 << 20)
    claimed = {"type": "http", "path": "/tasks/import", "headers": [(b"content-length", b"99999999999")]}
    await limit(claimed, endless, send)
    assert (sent[0]["status"], reached) == (413, [])
    sent.clear()
    await limit({"type": "http", "path": "/tasks/import", "headers": []}, endless, send)
    assert ([m["status"] for m in sent if "status" in m], len(reached)) == ([413], 3)


def test_rest_imports_lists_and_refuses(sign_in, tmp_path):
    operator = sign_in("operator")
    body = {"name": "mine", "archive": io.BytesIO(write_archive(tmp_path / "s.zip", task_files()).read_bytes())}
    made = operator.post("/api/tasksets", body)
    assert (made.status_code, made.json()["is_new"], made.json()["tasks"]) == (201, True, 1)
    assert operator.get("/api/tasksets").json()[0]["name"] == "mine"
    assert operator.get("/api/tasksets/mine/tasks").json()["items"][0]["name"] == "one"
    wrong = {"name": "other", "archive": io.BytesIO(b"hello")}
    refused = operator.post("/api/tasksets", wrong)
    assert (refused.status_code, refused.json()["problems"][0]["rule"]) == (422, "unknown-format")
    assert sign_in("viewer").post("/api/tasksets", {**body, "archive": io.BytesIO(b"x")}).status_code == 403
