"""Each export format: from the record of a rollout (or of two) to plain data. docs/reference/exports.md shows examples.

Holds: a line has what its format names and `provenance`; what an item lacks gives no line and a reason, never a guess.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from training.exports.record import Branch, RolloutRecord, common_prefix, openai_message

Item = Mapping[str, Any]
Line = dict[str, Any]


class NoLine(Exception):
    """The item has not what the format needs; the text says what, in few words (it is counted by it)."""


def sft_lines(record: RolloutRecord, item: Item) -> Iterator[Line]:
    """One line a branch. `trained[i]`: whether message i is in the loss; a token is trained in one line only."""
    if not record.branches:
        raise NoLine("no trainable token")
    for branch in record.branches:
        yield {
            "messages": [openai_message(message) for message in branch.messages],
            "trained": branch.trained,
            "reward": item.get("reward"),
            "provenance": record.provenance,
        }


def kto_lines(record: RolloutRecord, item: Item) -> Iterator[Line]:
    """label: kept by a person; else, where nobody said, reward above 0."""
    branch = main_branch(record)
    label = item.get("kept")
    if label is None and item.get("reward") is not None:
        label = item["reward"] > 0
    if label is None:
        raise NoLine("neither kept nor dropped, and never scored")
    first = next((n for n, trained in enumerate(branch.trained) if trained), len(branch.messages))
    messages = [openai_message(message) for message in branch.messages]
    yield {
        "prompt": messages[:first],
        "completion": messages[first:],
        "label": bool(label),
        "label_by": "person" if item.get("kept") is not None else "reward",
        "provenance": record.provenance,
    }


def prm_lines(record: RolloutRecord, item: Item) -> Iterator[Line]:
    """Turns with people's marks: true (right), false (wrong), null (nobody said)."""
    marks = item.get("turns") or {}
    branch = main_branch(record)
    turns = [n for n, trained in enumerate(branch.trained) if trained]
    labels = [marks.get(str(branch.nodes[n])) for n in turns]
    if all(label is None for label in labels):
        raise NoLine("no turn is marked")
    messages = [openai_message(message) for message in branch.messages]
    steps = [*turns, len(messages)]
    yield {
        "prompt": messages[: turns[0]],
        "turns": [
            {"node": branch.nodes[n], "messages": messages[n:end], "label": label}
            for n, end, label in zip(turns, steps[1:], labels, strict=True)
        ],
        "provenance": record.provenance,
    }


def token_lines(record: RolloutRecord, item: Item) -> Iterator[Line]:
    """One line a branch: ids as the engine saw them; logprobs and versions where they are known, null elsewhere."""
    if not record.branches:
        raise NoLine("no trainable token")
    for branch in record.branches:
        sample = branch.sample
        logprobs = [None if value != value else float(value) for value in sample.behaviour_logprobs.tolist()]
        yield {
            "token_ids": sample.ids.tolist(),
            "loss_mask": sample.loss_mask.astype(int).tolist(),
            "behaviour_logprobs": logprobs,
            "version_spans": branch.version_spans,
            "messages": [
                {"role": message["role"], "node": node, "start": piece.start, "end": piece.stop}
                for message, node, piece in zip(branch.messages, branch.nodes, sample.pieces, strict=True)
            ],
            "reward": item.get("reward"),
            "advantage": record.member.advantage if record.member else None,
            "provenance": record.provenance,
        }


def dpo_line(chosen: RolloutRecord, rejected: RolloutRecord, item: Item) -> Line:
    """prompt: what both begin with. Two rollouts of different tasks have no prompt in common: no line."""
    good, bad = main_branch(chosen), main_branch(rejected)
    length = common_prefix(good.messages, bad.messages)
    if length == 0:
        raise NoLine("the two sides have no prompt in common")
    if length in (len(good.messages), len(bad.messages)):
        raise NoLine("one side is the beginning of the other")
    messages = [[openai_message(message) for message in branch.messages] for branch in (good, bad)]
    return {
        "prompt": messages[0][:length],
        "chosen": messages[0][length:],
        "rejected": messages[1][length:],
        "judgement": {key: item.get(key) for key in ("reason", "judged_by", "judged_at") if item.get(key)},
        "provenance": {"chosen": chosen.provenance, "rejected": rejected.provenance},
    }


def main_branch(record: RolloutRecord) -> Branch:
    if record.main is None:
        raise NoLine("no trainable token")
    return record.main


LINES: dict[str, Callable[[RolloutRecord, Item], Iterator[Line]]] = {
    "sft": sft_lines,
    "kto": kto_lines,
    "prm": prm_lines,
    "tokens": token_lines,
}
"""Formats of one rollout an item, as lines."""
