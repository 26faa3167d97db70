"""The kinds of run beside online RL, every part a real process: from rollouts of one run to what the others learn of them."""

from collections.abc import Iterator

import pytest

from environments.models import Rollout
from gyre_web.accounts.models import User
from gyre_web.review.pairs import agreed_pairs, save_preference
from gyre_web.runs import evaluations
from tests.end_to_end import audit
from tests.end_to_end.tiny import TinySystem, tiny_system
from training import datasets
from training.models import Attempt, Export, Metric, Version

pytestmark = [pytest.mark.harness, pytest.mark.sandbox, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def system(django_db_blocker) -> Iterator[TinySystem]:
    with django_db_blocker.unblock(), tiny_system() as running:
        yield running


def finished(system: TinySystem, **changes) -> Attempt:
    attempt = system.wait_until_over(system.start(**changes))
    assert attempt.state == Attempt.State.COMPLETED, (attempt.state_reason, system.log[-3000:])
    return attempt


@pytest.fixture(scope="module")
def source(system) -> Attempt:
    """One step of online RL, whose rollouts the others learn from."""
    return finished(system, optimization={"steps": 1, "precision": "fp32"}, evaluation={"tasks": 0})


def rollouts_of(attempt: Attempt, reward: float) -> list[Rollout]:
    rows = Rollout.objects.filter(member__group__attempt=attempt, reward=reward, sampled_tokens__gt=0)
    return list(rows.order_by("created_at"))


def losses(attempt: Attempt, kind: str) -> list[float]:
    rows = Metric.objects.filter(attempt=attempt, kind=kind, key="loss").order_by("step")
    return list(rows.values_list("value", flat=True))


def test_what_was_rewarded_is_imitated_evaluated_and_compared_with_where_it_began(system, source):
    good = rollouts_of(source, 1.0)
    datasets.make_rollout_dataset(name="good", rollout_ids=[each.pk for each in good], query={"reward_min": 1})
    imitation = {"dataset": "good", "batch_size": 1, "epochs": 2.0, "learning_rate": 1e-2}
    attempt = finished(system, kind="supervised", supervised=imitation, evaluation={"tasks": 3})
    assert len(losses(attempt, "supervised")) == 2 * len(good)
    assert losses(attempt, "supervised")[-1] < losses(attempt, "supervised")[0]
    start = f"{source.run.name}/1/0"
    measured = finished(
        system, kind="evaluation", model={"name": "tiny", "start_from": start},
        evaluation={"tasks": 3, "samples_per_task": 2},
    )  # fmt: skip
    one, other = (
        evaluations.find_evaluation(str(Version.objects.get(attempt=each, number=0).pk)) for each in (measured, attempt)
    )
    found = evaluations.compare(one, other)
    assert (found.num_common, found.same_tasks) == (3, True)
    assert set(one.state["pass_at"]) == {"1", "2"}
    assert Version.objects.get(attempt=source, number=0).pinned
    audit.check_nothing_is_left(system, measured)


def test_judged_pairs_are_trained_on_and_exported(system, source):
    ann = User.objects.create(username="ann", role="reviewer")
    good, bad = rollouts_of(source, 1.0), rollouts_of(source, 0.0)
    for place, (a, b) in enumerate((a, b) for a in good for b in bad if a.task_id == b.task_id):
        save_preference(a=a, b=b, author=ann, choice="a", client_key=f"pair-{place:06d}")
    pairs, _ = agreed_pairs(run_id=source.run_id)
    assert pairs
    datasets.make_pair_dataset(name="pairs", pairs=[(pair.chosen, pair.rejected) for pair in pairs], query={})
    section = {"dataset": "pairs", "batch_size": 2, "epochs": 4.0, "learning_rate": 1e-2}
    attempt = finished(system, kind="preference", preference=section, evaluation={"tasks": 0})
    found = losses(attempt, "preference")
    assert found[0] == pytest.approx(0.6931, abs=1e-3)
    assert found[-1] < found[0]
    export = Export.objects.create(
        name="e", format="dpo", total=len(pairs),
        items=[{"chosen": str(pair.chosen), "rejected": str(pair.rejected)} for pair in pairs],
    )  # fmt: skip

    def written() -> Export | None:
        export.refresh_from_db()
        return export if export.is_over else None

    system.wait_for(written, "the controller finds the export and a worker writes it")
    assert export.state == Export.State.DONE
    assert export.size_bytes > 0
