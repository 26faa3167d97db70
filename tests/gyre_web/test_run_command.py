"""Runs from the command line: the same checks as the form's and REST's."""

from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from tests.training.factories import make_catalog, make_config
from training.models import Run
from training.services import config_to_toml

pytestmark = pytest.mark.django_db


@pytest.fixture
def write(tmp_path):
    make_catalog(tmp_path)

    def write(text: str) -> str:
        path = tmp_path / "config.toml"
        path.write_text(text)
        return str(path)

    return write


def test_a_good_file_starts_a_run(write):
    out = StringIO()
    call_command("run", "from-file", config=write(config_to_toml(make_config())), stdout=out)
    run = Run.objects.get(name="from-file")
    assert out.getvalue().strip() == f"/runs/{run.id}"
    assert run.attempts.get().config["model"]["name"] == "tiny"


def test_every_wrong_field_of_a_file_is_named_and_nothing_is_started(write):
    text = config_to_toml(make_config()).replace("rollouts_per_group = 3", "rollouts_per_group = 1")
    path = write(text.replace('name = "tiny"', 'name = "nobody"').replace("top_k = -1", "top_k = 20"))
    with pytest.raises(CommandError) as caught:
        call_command("run", "from-file", config=path)
    for field in ("tasks.rollouts_per_group", "model.name", "sampling.top_k"):
        assert field in str(caught.value)
    assert not Run.objects.exists()


def test_bad_toml_names_the_line(write):
    with pytest.raises(CommandError, match="Line 2"):
        call_command("run", "x", config=write("seed = 1\n[model\n"))


def test_a_name_that_is_taken_is_said(write):
    path = write(config_to_toml(make_config()))
    call_command("run", "twice", config=path, stdout=StringIO())
    with pytest.raises(CommandError, match="twice"):
        call_command("run", "twice", config=path)


def test_checking_only_prints_the_whole_config(write):
    out = StringIO()
    call_command("run", "x", config=write(config_to_toml(make_config())), check=True, stdout=out)
    assert "max_grad_norm" in out.getvalue()
    assert not Run.objects.exists()
