"""The contract matrix: real harnesses, a scripted model, each tree against a hand-written expectation (matrix.py).

The cells of CHOSEN run always; all of them with GYRE_MATRIX=all, or those whose name has the word that it is set to.
"""

import os
from collections.abc import Iterator

import pytest
from django.core.management import call_command

import environments.gateway.delivery as delivery
from environments.harnesses.trial import read_report, run_one, small_script, trial_harness
from environments.models import Engine
from environments.scripted.script import build_rule
from environments.scripted.stage import Stage, open_stage
from tests.environments.harnesses.conftest import need, room
from tests.environments.harnesses.labels import LABELS
from tests.environments.harnesses.matrix import CHOSEN, EXPECTED, FINISH, SITUATIONS, shape, shape_of

pytestmark = [pytest.mark.harness, pytest.mark.sandbox, pytest.mark.slow, pytest.mark.timeout(900)]
WANTED = os.environ.get("GYRE_MATRIX", "")


@pytest.fixture(scope="module")
def stage(django_db_blocker) -> Iterator[Stage]:
    """Not in a transaction: the gateway's thread has to see the rows."""
    with django_db_blocker.unblock(), room():
        call_command("migrate", verbosity=0)
        try:
            with open_stage() as opened:
                yield opened
        finally:
            call_command("flush", verbosity=0, interactive=False)


@pytest.fixture(scope="module")
def first_prompts() -> dict[str, int]:
    """Tokens of each harness's first prompt, measured when a situation needs them."""
    return {}


def cells() -> list[tuple[str, str]]:
    if WANTED == "all":
        return list(EXPECTED)
    if WANTED:
        return [cell for cell in EXPECTED if WANTED in "/".join(cell)]
    return [cell for cell in EXPECTED if cell in CHOSEN]


def test_cells_beyond_the_chosen_ones_are_said():
    """Only a word: they take too long for every day."""
    left = [cell for cell in EXPECTED if cell not in cells()]
    if left:
        pytest.skip(f"NOT CHECKED HERE: {len(left)} of {len(EXPECTED)} cells of the matrix; GYRE_MATRIX=all runs them")


@pytest.mark.parametrize(("label", "situation"), cells(), ids="/".join)
def test_the_tree_is_as_expected(stage, first_prompts, monkeypatch, label, situation):
    program, given = LABELS[label]
    need(program)
    case = SITUATIONS[situation]
    budgets: dict[str, int] = {}
    if case.room_tokens:
        if label not in first_prompts:
            stage.play(build_rule(small_script([FINISH])))
            report = read_report(run_one(stage, trial_harness(program, **given)))
            first_prompts[label] = max(call.num_prompt_tokens for call in report.calls)
        budgets["max_context_tokens"] = first_prompts[label] + case.room_tokens
    if situation == "pause":
        monkeypatch.setattr(delivery, "SILENT_S", 0.3)
        monkeypatch.setattr(delivery, "KEEP_ALIVE_S", 0.2)
    stage.play(build_rule(case.script), faults=case.faults)
    rollout = run_one(stage, trial_harness(program, **given), max_tokens=case.max_tokens, **budgets)
    assert shape_of(read_report(rollout)) == EXPECTED[label, situation], rollout.harness_output[-2000:]


@pytest.mark.parametrize("label", ["codex", "mini-tools"])
def test_an_expert_plays_the_solution_through_the_harnesss_own_tools(stage, monkeypatch, label):
    program, given = LABELS[label]
    need(program)
    monkeypatch.setattr(stage, "pool", f"expert-{label}")
    Engine.objects.create(
        pool=stage.pool, name="expert", base_url=f"expert://{program}", model_name="x", state=Engine.State.SERVING
    )
    rollout = run_one(stage, trial_harness(program, **given))
    assert shape_of(read_report(rollout)) == shape("mm"), rollout.harness_output[-2000:]
    assert not rollout.nodes.filter(sampled=True).exclude(behaviour_logprobs=None).exists()
