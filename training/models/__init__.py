"""The rows of this room, one module a noun. Foreign keys may point to `environments`, never to `gyre_web`."""

from training.models.attempt import Attempt
from training.models.cell import Cell
from training.models.checkpoint import Checkpoint
from training.models.controller_lease import ControllerLease
from training.models.dataset import Dataset
from training.models.export import Export
from training.models.group import Group
from training.models.member import Member
from training.models.metric import Metric
from training.models.optimizer_step import OptimizerStep
from training.models.run import Run
from training.models.run_event import RunEvent
from training.models.version import Version

__all__ = [
    "Attempt",
    "Cell",
    "Checkpoint",
    "ControllerLease",
    "Dataset",
    "Export",
    "Group",
    "Member",
    "Metric",
    "OptimizerStep",
    "Run",
    "RunEvent",
    "Version",
]
