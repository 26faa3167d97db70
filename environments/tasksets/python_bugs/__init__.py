"""The second built-in set: one small mistake in a real Python package, to be found from the tests that fail."""

from environments.tasksets.python_bugs.making import NAME, GenerationError, make_tasks

__all__ = ["NAME", "GenerationError", "make_tasks"]
