"""Groups go where something can be learnt, and nowhere for ever."""

from collections import Counter

import pytest

from training.scheduling.curriculum import LATEST, Curriculum, learnability
from training.scheduling.task_order import Part

SOLVED, HALF, FAILED = [1.0] * 12, [0.0, 1.0] * 6, [0.0] * 12
TASKS = [(family, f"{family}-{number}") for family in ("easy", "hard", "middle", "new") for number in range(5)]
REWARDS = {"easy": SOLVED, "hard": FAILED, "middle": HALF}


def curriculum(seed: str = "1", parts=None) -> Curriculum[str]:
    return Curriculum(seed=seed, parts=parts or [Part(weight=1.0, tasks=TASKS)])


def test_the_weights_are_those_of_the_formula():
    assert learnability(HALF) == pytest.approx(7 * 7 / (14 * 15))
    assert learnability(SOLVED) == learnability(FAILED) == pytest.approx(13 / (14 * 15))
    assert learnability([]) == pytest.approx(1 / 6)


def test_only_the_latest_rollouts_count_and_rewards_beyond_the_range_are_clipped():
    assert learnability(FAILED + HALF) == learnability(HALF)
    assert len(HALF) == LATEST
    assert learnability([7.5, -3.0]) == learnability([1.0, 0.0])


def test_groups_are_drawn_in_proportion_to_what_can_be_learnt():
    drawn = Counter(curriculum().draw(n, rewards=REWARDS, taken={}).split("-")[0] for n in range(4000))
    weights = {"easy": 0.0619, "hard": 0.0619, "middle": 0.2333, "new": 0.1667}
    for family, weight in weights.items():
        assert drawn[family] / 4000 == pytest.approx(weight / sum(weights.values()), abs=0.03)


def test_the_same_rewards_and_seed_give_the_same_task_after_a_restart():
    def draws(seed):
        return [curriculum(seed).draw(n, rewards=REWARDS, taken={"middle": n}) for n in range(50)]

    assert draws("1") == draws("1") != draws("2")


def test_a_family_gives_all_its_tasks_before_one_comes_again():
    tasks = curriculum(parts=[Part(weight=1.0, tasks=TASKS[:5])])
    drawn = [tasks.draw(n, rewards={}, taken={"easy": n}) for n in range(10)]
    assert sorted(drawn[:5]) == sorted(drawn[5:]) == sorted(task for _, task in TASKS[:5])


def test_task_sets_keep_their_shares_whatever_is_learnt_in_them():
    parts = [Part(weight=3.0, tasks=[("easy", "a")]), Part(weight=1.0, tasks=[("middle", "b")])]
    counts = Counter(curriculum(parts=parts).draw(n, rewards=REWARDS, taken={}) for n in range(4000))
    assert counts["a"] / 4000 == pytest.approx(0.75, abs=0.03)
