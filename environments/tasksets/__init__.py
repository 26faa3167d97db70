"""Sets of tasks on disk: the Harbor layout, the built-in generated sets, imports."""

from environments.tasksets.catalog import (
    ensure_builtin_taskset,
    generate_python_bugs,
    generate_taskset,
    import_taskset,
)
from environments.tasksets.harbor import HarborTask, InvalidTask, Problem, read_task, start_tree
from environments.tasksets.importing import Imported, InvalidImport, import_tasks

__all__ = [
    "HarborTask",
    "Imported",
    "InvalidImport",
    "InvalidTask",
    "Problem",
    "ensure_builtin_taskset",
    "generate_python_bugs",
    "generate_taskset",
    "import_tasks",
    "import_taskset",
    "read_task",
    "start_tree",
]
