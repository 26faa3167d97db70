"""The order of tasks is seeded, spreads families, and is the same after a restart."""

from collections import Counter

from training.scheduling.task_order import Part, TaskOrder

TWELVE = [(f"family-{number % 12}", f"task-{number}") for number in range(60)]


def order(seed: str = "1", parts=None) -> TaskOrder[str]:
    return TaskOrder(seed=seed, parts=parts or [Part(weight=1.0, tasks=TWELVE)])


def test_the_same_seed_gives_the_same_order_wherever_one_begins_to_read():
    whole, late = order(), order()
    assert late[37] == whole[37]
    assert [whole[n] for n in range(80)] == [late[n] for n in range(80)]
    assert [whole[n] for n in range(60)] != [order("2")[n] for n in range(60)]


def test_every_twelve_tasks_of_twelve_equal_families_are_one_of_each():
    families = {task: family for family, task in TWELVE}
    tasks = order()
    for start in range(0, 120, 12):
        assert len({families[tasks[n]] for n in range(start, start + 12)}) == 12


def test_each_pass_takes_every_task_once_and_the_next_pass_is_another_order():
    tasks = order()
    first, second = [tasks[n] for n in range(60)], [tasks[n] for n in range(60, 120)]
    assert sorted(first) == sorted(second) == sorted(task for _, task in TWELVE)
    assert first != second


def test_task_sets_are_drawn_by_weight():
    parts = [Part(weight=3.0, tasks=[("", "a")]), Part(weight=1.0, tasks=[("", "b")])]
    counts = Counter(order(parts=parts)[n] for n in range(1))
    tasks = order(parts=parts)
    counts = Counter(tasks[n] for n in range(4000))
    assert 2850 < counts["a"] < 3150
