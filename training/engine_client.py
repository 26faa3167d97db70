"""Ask an engine process, synchronously: administration, probes, load. (Model calls are the gateway's.)

From:  training.engines.
To:    vLLM's endpoints over its socket or port.
Holds: an idle connection that the engine closed is retried once; anything else is EngineError with the endpoint.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from training.engine_front import LEASE_HEADER, VERSION_HEADER

GENERATE = "/inference/v1/generate"
METRIC = re.compile(r"^vllm:(\w+)(?:\{[^}]*\})? ([-+.e0-9]+|nan|inf)$", re.IGNORECASE | re.MULTILINE)


class EngineError(Exception):
    """Engine boundary: it did not do what it was asked. Says what, and whether asking again can help."""


@dataclass(frozen=True, kw_only=True)
class Load:
    num_running: int
    num_waiting: int
    kv_use: float
    """Share of the KV cache in use, 0 to 1."""
    generated_tokens: float
    """Since the engine started."""


class EngineClient:
    def __init__(self, base_url: str, api_key: str, model_name: str) -> None:
        is_socket = base_url.startswith("unix://")
        transport = httpx.HTTPTransport(uds=base_url.removeprefix("unix://") if is_socket else None, retries=1)
        self._http = httpx.Client(
            transport=transport,
            base_url="http://engine" if is_socket else base_url,
            headers={"authorization": f"Bearer {api_key}"},
        )
        self._model_name = model_name

    def close(self) -> None:
        self._http.close()

    def is_healthy(self, timeout_s: float = 2.0) -> bool:
        try:
            return self._http.get("/health", timeout=timeout_s).status_code == 200
        except httpx.HTTPError:
            return False

    def pause(self, *, keep_cache: bool, lease_s: float | None = None, version: int | None = None) -> None:
        """Freeze open requests where they are. With a lease the engine resumes by itself after lease_s."""
        headers = {} if lease_s is None else {LEASE_HEADER.decode(): f"{lease_s:g}"}
        if version is not None:
            headers[VERSION_HEADER.decode()] = str(version)
        self._post("/pause", params={"mode": "keep", "clear_cache": str(not keep_cache).lower()}, headers=headers)

    def resume(self) -> None:
        self._post("/resume")

    def reload(self, path: str, timeout_s: float = 600.0) -> None:
        call = {"method": "reload_weights", "kwargs": {"weights_path": path}}
        self._post("/collective_rpc", json=call, timeout_s=timeout_s)

    def set_version(self, version: int) -> None:
        self._post("/update_weight_version", json={"new_version": str(version)})

    def version(self) -> str:
        return str(self._get("/weight_info").json().get("weight_version"))

    def is_paused(self) -> bool:
        return bool(self._get("/is_paused").json().get("is_paused"))

    def drop_cache(self) -> None:
        self._post("/reset_prefix_cache")

    def prompt_logprobs(self, ids: Sequence[int], timeout_s: float = 60.0) -> list[float]:
        """Logprob of each id after the first, given those before it, computed now: no cached keys and values."""
        sampling = {"max_tokens": 1, "temperature": 1.0, "prompt_logprobs": 0, "detokenize": False}
        body = {"model": self._model_name, "token_ids": list(ids), "sampling_params": sampling}
        answer = self._post(GENERATE, json=body, timeout_s=timeout_s).json()
        entries = answer.get("prompt_logprobs")
        if not entries:
            raise EngineError("The engine gave no prompt logprobs. Its version of vLLM is not the one in requirements.")
        return [float(entry[str(i)]["logprob"]) for i, entry in zip(ids[1:], entries[1:], strict=True)]

    def load(self, timeout_s: float = 5.0) -> Load:
        values: dict[str, float] = {}
        for name, value in METRIC.findall(self._get("/metrics", timeout_s=timeout_s).text):
            values[name] = values.get(name, 0.0) + float(value)
        return Load(
            num_running=int(values.get("num_requests_running", 0)),
            num_waiting=int(values.get("num_requests_waiting", 0)),
            kv_use=values.get("kv_cache_usage_perc", 0.0),
            generated_tokens=values.get("generation_tokens_total", 0.0),
        )

    def post(self, path: str, json: Mapping[str, Any] | None = None, timeout_s: float = 60.0) -> None:
        """Any other administrative call (GPU: sleep, wake_up, weight transfer)."""
        self._post(path, json=json, timeout_s=timeout_s)

    def _get(self, path: str, timeout_s: float = 10.0) -> httpx.Response:
        return self._request("GET", path, timeout=timeout_s)

    def _post(self, path: str, timeout_s: float = 60.0, **given: Any) -> httpx.Response:
        return self._request("POST", path, timeout=timeout_s, **given)

    def _request(self, method: str, path: str, **given: Any) -> httpx.Response:
        try:
            response = self._http.request(method, path, **given)
        except httpx.RemoteProtocolError:
            response = self._again(method, path, **given)
        except httpx.HTTPError as error:
            raise EngineError(f"The engine does not answer {path}: {error!r}.") from error
        if response.status_code != 200:
            raise EngineError(f"The engine answered {response.status_code} to {path}: {response.text[:500]}")
        return response

    def _again(self, method: str, path: str, **given: Any) -> httpx.Response:
        try:
            return self._http.request(method, path, **given)
        except httpx.HTTPError as error:
            raise EngineError(f"The engine breaks the connection on {path}: {error!r}.") from error
