"""The config reference is written from the config."""

from pathlib import Path

from django.conf import settings

from gyre_web.management.commands.config_reference import build_reference


def test_the_reference_in_docs_is_up_to_date():
    assert (Path(settings.BASE_DIR) / "docs" / "reference" / "config.md").read_text() == build_reference()


def test_the_reference_has_default_bounds_and_meaning_of_a_field():
    assert (
        "| `tasks.rollouts_per_group` | `6` | ≥ 2 | N: rollouts of one task. One alone has nothing to compare with. |"
        in build_reference()
    )
