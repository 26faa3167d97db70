"""Sets of tasks on disk: the Harbor layout, the built-in generated set, imports."""

from environments.tasksets.catalog import (
    InvalidTaskSet,
    ensure_builtin_taskset,
    generate_taskset,
    import_taskset,
    read_tasks,
)
from environments.tasksets.harbor import HarborTask, InvalidTask, Problem, read_task, start_tree

__all__ = [
    "HarborTask",
    "InvalidTask",
    "InvalidTaskSet",
    "Problem",
    "ensure_builtin_taskset",
    "generate_taskset",
    "import_taskset",
    "read_task",
    "read_tasks",
    "start_tree",
]
