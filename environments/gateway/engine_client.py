"""Ask an engine for tokens: ids in; ids, logprobs and weight versions out, as they are sampled.

From:  generation.py, with an Engine row as routing.py saw it.
To:    vLLM's `/inference/v1/generate` (0.32), streamed; the scripted engine speaks the same.
Holds: every error is EngineLost (go elsewhere) or EngineRefused (this request is wrong; elsewhere is no better).
Never: decodes text.
"""

from array import array
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import orjson

from environments.gateway.http_client import Address, HttpClient
from environments.gateway.tree import IdArray

GENERATE_PATH = "/inference/v1/generate"


class EngineLost(Exception):
    """Engine boundary: it failed, or left, before the answer was complete. Another engine can go on."""


class EngineRefused(Exception):
    """Engine boundary: it will not answer this request. A retry cannot help."""


@dataclass(frozen=True, kw_only=True)
class EngineTokens:
    """One piece of a stream. `versions` ([start, end, label] over the whole output) comes with the last."""

    ids: list[int]
    logprobs: list[float] | None
    finish_reason: str = ""
    versions: list[tuple[int, int, str]] = field(default_factory=list)
    num_cached: int | None = None


async def generate(
    client: HttpClient,
    *,
    base_url: str,
    api_key: str,
    model_name: str,
    request_id: str,
    prompt: IdArray,
    sampling: dict[str, Any],
) -> AsyncIterator[EngineTokens]:
    body = orjson.dumps(
        {
            "request_id": request_id,
            "model": model_name,
            "token_ids": prompt,
            "sampling_params": {**sampling, "logprobs": 1, "detokenize": False},
            "stream": True,
            "stream_options": {"include_usage": True},
        },
        option=orjson.OPT_SERIALIZE_NUMPY,
    )
    headers = {"content-type": "application/json", "accept": "text/event-stream"}
    if api_key:
        headers["authorization"] = f"Bearer {api_key}"
    try:
        response = await client.request(
            Address.from_url(base_url), method="POST", path=GENERATE_PATH, headers=headers, body=body
        )
        async with response:
            if response.status != 200:
                raise_status(response.status, (await response.read())[:2000].decode("utf-8", "replace"))
            buffer = b""
            while piece := await response.read_piece():
                *lines, buffer = (buffer + piece).split(b"\n")
                data = [line[5:].strip() for line in lines if line.startswith(b"data:")]
                is_done = b"[DONE]" in data
                chunks = orjson.loads(b"[" + b",".join(line for line in data if line != b"[DONE]") + b"]")
                failed = next((index for index, chunk in enumerate(chunks) if "error" in chunk), len(chunks))
                if failed:
                    yield read_chunks(chunks[:failed])
                if failed < len(chunks):
                    raise EngineLost(f"The engine failed in mid-answer: {chunks[failed]['error']}")
                if is_done:
                    await response.read()
                    return
    except (OSError, TimeoutError, ValueError, LookupError, TypeError, AttributeError, OverflowError) as error:
        raise EngineLost(f"Engine {base_url}: {error!r}.") from error
    raise EngineLost(f"Engine {base_url} ended its stream without [DONE].")


def raise_status(status: int, text: str) -> None:
    if status in (400, 413, 422):
        raise EngineRefused(f"The engine refused the request (HTTP {status}): {text}")
    raise EngineLost(f"The engine answered HTTP {status}: {text}")


def read_chunks(chunks: list[dict[str, Any]]) -> EngineTokens:
    """What arrived together, as one piece: on a busy machine most of a token's cost is the handling of its piece.

    Raises EngineLost, or KeyError, TypeError and their like for what is no chunk at all.
    """
    ids: list[int] = []
    logprobs: list[float] = []
    finish_reason = ""
    versions: list[tuple[int, int, str]] = []
    num_cached = None
    for chunk in chunks:
        if not chunk["choices"]:
            num_cached = ((chunk.get("usage") or {}).get("prompt_tokens_details") or {}).get(
                "cached_tokens", num_cached
            )
            continue
        choice = chunk["choices"][0]
        ids += choice.get("token_ids") or ()
        logprobs += [entry["logprob"] for entry in (choice.get("logprobs") or {}).get("content") or ()]
        finish_reason = choice.get("finish_reason") or finish_reason
        if choice.get("weight_versions"):
            versions = [(v["start"], v["end"], v["version"]) for v in choice["weight_versions"]]
    array("I", ids)  # raises for what is no token id
    if len(logprobs) != len(ids):
        raise EngineLost(f"The engine sent {len(logprobs)} logprobs for {len(ids)} tokens.")
    return EngineTokens(
        ids=ids, logprobs=logprobs, finish_reason=finish_reason, versions=versions, num_cached=num_cached
    )
