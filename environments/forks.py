"""Start rollouts again from call k of one that was recorded: siblings that share its beginning.

From:  the rollout page, REST, credit experiments.
To:    queued Rollouts with a Fork row, and copies of the shared nodes that are context there, never trained.
Holds: the fork's harness starts afresh and is answered from the original's record up to call k (gateway.replay), then
       by engines; an original is kept as long as its forks are.
Never: changes the original.
"""

from django.db import transaction
from django.db.models import Max

from environments.harnesses import get_program
from environments.models import Call, Fork, Node, Rollout
from environments.rollouts import enqueue_rollout

MAX_FORKS = 32
"""At once, so that a slip of the finger does not fill a cluster."""


class ForkRefused(ValueError):
    """Says which field, and what would be right."""


@transaction.atomic
def fork_rollout(*, original: Rollout, call_index: int, count: int) -> list[Rollout]:
    """`count` rollouts that go their own way from call `call_index` on. Raises ForkRefused."""
    if not 1 <= count <= MAX_FORKS:
        raise ForkRefused(f"count must be from 1 to {MAX_FORKS}.")
    if not original.calls.filter(index=call_index, replay_of=None).exclude(state=Call.State.REFUSED).exists():
        raise ForkRefused(f"call_index {call_index} is no call of this rollout that a model answered.")
    if reason := get_program(original.harness.program).habits.not_replayable:
        raise ForkRefused(f"{original.harness.name} cannot be replayed, so it cannot be forked: {reason}")
    shared = shared_nodes(original, call_index)
    forks = [start_fork(original, call_index, shared) for _ in range(count)]
    for fork in forks:
        transaction.on_commit(lambda pk=fork.pk: enqueue_rollout(pk))  # type: ignore[misc]
    return forks


def shared_nodes(original: Rollout, call_index: int) -> list[Node]:
    """Nodes of all calls before this one; as indices are dense, all up to the last of them."""
    before = original.calls.filter(index__lt=call_index)
    last = before.aggregate(prompt=Max("prompt_node"), answer=Max("answer_node"))
    end = max((index for index in last.values() if index is not None), default=-1)
    return list(original.nodes.filter(index__lte=end).order_by("index"))


def start_fork(original: Rollout, call_index: int, shared: list[Node]) -> Rollout:
    fork = Rollout.objects.create(
        task=original.task,
        model=original.model,
        harness=original.harness,
        purpose=Rollout.Purpose.TRIAL,
        pool=original.pool,
        sampling=without_seed(original.sampling),
        budgets=original.budgets,
    )
    Fork.objects.create(rollout=fork, original=original, call_index=call_index)
    Node.objects.bulk_create([copy_node(node, fork) for node in shared], batch_size=500)
    return fork


def copy_node(node: Node, fork: Rollout) -> Node:
    fields = {f.attname: getattr(node, f.attname) for f in Node._meta.concrete_fields if f.attname != "id"}
    flags = [*node.flags, f"shared:{node.rollout_id}"]
    return Node(**fields | {"rollout_id": fork.pk, "trainable": False, "flags": flags})


def without_seed(sampling: dict[str, object]) -> dict[str, object]:
    """Siblings with one seed would say the same."""
    return {**sampling, "seed": None}
