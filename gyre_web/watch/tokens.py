"""The tokens of one node, decoded one by one, with everything that the lenses colour.

From:  a Node's bytes, its model's renderer (environments.rendering), training's Member.token_stats.
To:    gyre_web.watch.views.tokens, as columns: position i of every array is token `start + i` of the node.
Holds: the texts of a node, joined, are what its ids decode to; a token inside a code point has an empty text.
Never: re-encodes anything; invents a number that was not recorded (it is null).
"""

import base64
import re
from array import array
from typing import Any

from django.db.models import F, Func, JSONField, Value

from environments.models import Model, Node, Rollout
from environments.rendering import Renderer, load_renderer
from environments.rendering.tokens import ModelTokenizer
from training.models import Member

ID_BYTES = 4
SPECIAL = re.compile(r"<\|[^|]*\|>|</?[a-z_]+>|<[|｜][^>]*[|｜]>|\[/?[A-Z_]+\]")


def num_tokens_of(num_bytes: int | None) -> int:
    return (num_bytes or 0) // ID_BYTES


def id_list(data: bytes | memoryview | None) -> list[int]:
    """Little-endian uint32."""
    return _unpack("I", data)


def float_list(data: bytes | memoryview | None) -> list[float] | None:
    """Little-endian float32; None where nothing was recorded."""
    return None if data is None else _unpack("f", data)


def _unpack(code: str, data: bytes | memoryview | None) -> list[Any]:
    values = array(code)
    values.frombytes(bytes(data or b""))
    return values.tolist()


def decode_ids(model: Model, ids: list[int]) -> tuple[list[str], set[int]]:
    """Text of each id ("" inside a code point), and the ids that are special tokens."""
    renderer = load_renderer(model)
    decoder = renderer.decoder()
    texts = [decoder.push(token) for token in ids]
    stops = set(renderer.stop_token_ids)
    special = {token for token, text in zip(ids, texts, strict=True) if token in stops or SPECIAL.fullmatch(text)}
    silent = [i for i, text in enumerate(texts) if text == "" and not completes_a_character(texts, i)]
    special |= {ids[i] for i in silent}
    for i in silent:
        texts[i] = special_text(renderer, ids[i])
    return texts, special


def completes_a_character(texts: list[str], position: int) -> bool:
    """Whether a token without text is the beginning of a character that a later token completes."""
    following = next((text for text in texts[position + 1 : position + 8] if text), "")
    return following[:1] > "\x7f"


def special_text(renderer: Renderer, token: int) -> str:
    """How a token that has no text of its own is shown: by its name where the tokenizer has one, else by its id."""
    tokenizer = getattr(renderer, "_tokenizer", None)
    name = tokenizer.token_bytes(token).decode(errors="replace") if isinstance(tokenizer, ModelTokenizer) else ""
    return name or f"<|{token}|>"


def versions_of(node: Node, num_tokens: int) -> list[int | None]:
    """The weight version that sampled each token; None for context."""
    versions: list[int | None] = [None] * num_tokens
    for start, end, version in node.version_spans:
        for position in range(max(0, start), min(end, num_tokens)):
            versions[position] = version
    return versions


def stats_of(rollout: Rollout, node: Node) -> tuple[dict[str, Any], float | None]:
    """Training's own record of this node's tokens ({} before it was trained), and its member's advantage."""
    own = Func(F("token_stats"), Value(str(node.index)), function="jsonb_extract_path", output_field=JSONField())
    row = Member.objects.filter(rollout=rollout).annotate(own=own).values_list("own", "advantage").first()
    return (row[0] or {}, row[1]) if row else ({}, None)


def aligned(values: list[Any] | None, node: Node, num_tokens: int) -> list[Any]:
    """Values of the sampled part, or of the whole node, as one entry a token; null where there is none."""
    if values is None:
        return [None] * num_tokens
    lead = 0 if len(values) == num_tokens else min(node.opener_length, num_tokens)
    return ([None] * lead + values + [None] * num_tokens)[:num_tokens]


def build_mask(node: Node, recorded: list[int] | None, num_tokens: int) -> list[int]:
    """1 where a token is (recorded) or would be (trainable, sampled) in the loss."""
    if recorded is not None:
        return [int(bool(value)) for value in aligned(recorded, node, num_tokens)]
    return [int(node.trainable and position >= node.opener_length) for position in range(num_tokens)]


def build_tokens(rollout: Rollout, node: Node, start: int, count: int) -> dict[str, Any]:
    ids = id_list(node.ids)
    end = min(len(ids), start + count)
    texts, special = decode_ids(rollout.model, ids[:end])
    stats, advantage = stats_of(rollout, node)
    recorded = list(base64.b64decode(stats["loss_mask"])) if stats.get("loss_mask") else None
    trainer = float_list(base64.b64decode(stats["trainer_logprobs"])) if stats.get("trainer_logprobs") else None
    window = slice(start, end)
    return {
        "index": node.index,
        "start": start,
        "total": len(ids),
        "opener_length": node.opener_length,
        "sampled": node.sampled,
        "ids": ids[window],
        "texts": texts[window],
        "special": [position for position in range(start, end) if ids[position] in special],
        "logprobs": aligned(float_list(node.behaviour_logprobs), node, len(ids))[window],
        "versions": versions_of(node, len(ids))[window],
        "mask": build_mask(node, recorded, len(ids))[window],
        "mask_recorded": recorded is not None,
        "trainer_logprobs": aligned(trainer, node, len(ids))[window],
        "advantage": stats.get("advantage", advantage),
    }
