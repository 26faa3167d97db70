"""The rows of this room, one module a noun. Foreign keys point down or sideways, never to `training`."""

from environments.models.call import Call
from environments.models.egress import EgressRequest
from environments.models.engine import Engine
from environments.models.fork import Fork
from environments.models.harness import Harness
from environments.models.image import Image
from environments.models.message_text import MessageText
from environments.models.model import Model
from environments.models.node import Node
from environments.models.outcome import Outcome
from environments.models.rollout import Rollout
from environments.models.sandbox import Sandbox
from environments.models.session import Session
from environments.models.task import Task
from environments.models.taskset import TaskSet

__all__ = [
    "Call",
    "EgressRequest",
    "Engine",
    "Fork",
    "Harness",
    "Image",
    "MessageText",
    "Model",
    "Node",
    "Outcome",
    "Rollout",
    "Sandbox",
    "Session",
    "Task",
    "TaskSet",
]
