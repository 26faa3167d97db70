"""Sample one answer: from whatever engine serves, across failures, weight changes and waits.

From:  calls.py, with an open call.
To:    call.sampled / logprobs / versions grow; `tokens` and `call` events in the live log.
Holds: nothing that was sampled is sampled again: another engine goes on from prompt + sampled so far.
Never: fails because no engine serves; writes to Postgres.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from redis.exceptions import RedisError

from environments import live
from environments.gateway.engine_client import EngineLost, EngineRefused, EngineTokens, generate
from environments.gateway.events import call_event
from environments.gateway.http_client import HttpClient
from environments.gateway.open_rollout import LiveCall, OpenRollout
from environments.gateway.record import EngineRow
from environments.gateway.routing import Hold, Routing
from environments.rendering.protocol import Decoder
from environments.rendering.tool_text import CALL

MAX_FAILURES = 40
"""Engine failures in a row without one new token, after which the call itself is suspected."""
BACKOFF_S = (0.05, 0.1, 0.2, 0.5, 1.0)
EXPERT_VERSION = -1

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Generation:
    """What sampling needs of this gateway."""

    routing: Routing
    client: HttpClient

    async def sample(self, rollout: OpenRollout, call: LiveCall) -> None:
        """Until the answer ends. Raises EngineRefused."""
        decoder = rollout.renderer.decoder()
        for token_id in call.sampled:
            decoder.push(token_id)
        failures = 0
        while not (finish := self._finished(rollout, call)):
            engine = await self._wait_for_engine(rollout, call)
            before = len(call.sampled)
            try:
                finish = await self._segment(rollout, call, engine, decoder)
                if finish:
                    break
            except EngineLost as error:
                failures = 0 if len(call.sampled) > before else failures + 1
                logger.warning(
                    "An engine was lost in mid-call; going on elsewhere",
                    extra={"rollout": str(rollout.id), "engine": str(engine.id), "error": str(error)},
                )
                call.update(error="")
                if failures >= MAX_FAILURES:
                    raise EngineRefused(f"No engine answered this call in {failures} tries. Last: {error}") from error
                self.routing.suspect(engine.id)
                await asyncio.sleep(BACKOFF_S[min(failures, len(BACKOFF_S) - 1)])
        call.update(finish_reason=finish, num_sampled_tokens=len(call.sampled))
        rest = decoder.flush()
        if rest:
            live.tell(rollout.id, [self._tokens_event(call, len(call.sampled), [], [rest], [])])

    def _finished(self, rollout: OpenRollout, call: LiveCall) -> str:
        if call.sampled and call.sampled[-1] in rollout.renderer.stop_token_ids:
            return "stop"
        return "length" if len(call.sampled) >= call.max_tokens else ""

    async def _wait_for_engine(self, rollout: OpenRollout, call: LiveCall) -> EngineRow:
        choice = self.routing.choose(rollout_id=rollout.id, pool=rollout.pool)
        if not isinstance(choice, Hold):
            return choice
        began, said = time.monotonic(), ""
        held_before = call.row.held_s
        while isinstance(choice, Hold):
            if choice.reason != said:
                said = choice.reason
                live.tell(rollout.id, [call_event(call, hold_reason=said)])
            await self.routing.changed.wait(0.5)
            choice = self.routing.choose(rollout_id=rollout.id, pool=rollout.pool)
            call.update(held_s=held_before + time.monotonic() - began)
        live.tell(rollout.id, [call_event(call)])
        return choice

    async def _segment(self, rollout: OpenRollout, call: LiveCall, engine: EngineRow, decoder: Decoder) -> str:
        """One engine's part of the answer; its finish reason, or "" when it left. Raises EngineLost."""
        start = len(call.sampled)
        if str(engine.id) not in call.row.engines:
            call.update(engines=[*call.row.engines, str(engine.id)])
        self.routing.begin(engine.id)
        finish, settled = "", False
        try:
            async with asyncio.timeout(None) as scope:
                with self.routing.watch(engine.id, scope):
                    async for piece in self._ask(rollout, call, engine):
                        self.routing.heard(engine.id)
                        self._take(rollout, call, engine, decoder, piece)
                        finish = piece.finish_reason or finish
                        settled = settled or self._settle(call, start, piece)
        except TimeoutError as error:
            raise EngineLost("It left for other work, or does not answer any more.") from error
        finally:
            self.routing.end(engine.id)
            if not settled and len(call.sampled) > start and call.versions[start] != EXPERT_VERSION:
                oldest = min(call.versions[start:])
                call.versions[start:] = [oldest] * (len(call.sampled) - start)
        if finish in ("stop", "length"):
            return finish
        raise EngineLost(f"It stopped with finish reason {finish or 'none'}.")

    def _ask(self, rollout: OpenRollout, call: LiveCall, engine: EngineRow) -> AsyncIterator[EngineTokens]:
        if engine.base_url.startswith("expert://"):
            return expert_answer(rollout, call, engine.base_url.removeprefix("expert://"))
        already = len(call.sampled)
        sampling: dict[str, Any] = {
            name: call.row.imposed[name] for name in ("temperature", "top_p", "top_k") if name in call.row.imposed
        }
        if call.row.imposed.get("seed") is not None:
            sampling["seed"] = (call.row.imposed["seed"] + already) % 2**31
        sampling["max_tokens"] = call.max_tokens - already
        sampling["stop_token_ids"] = list(rollout.renderer.stop_token_ids)
        return generate(
            self.client,
            base_url=engine.base_url,
            api_key=engine.api_key,
            model_name=engine.model_name,
            request_id=f"{call.id.hex}-{already}",
            prompt=rollout.tree.prompt_ids(call.row.prompt_node, [*call.opener, *call.sampled]),
            sampling=sampling,
        )

    def _take(
        self, rollout: OpenRollout, call: LiveCall, engine: EngineRow, decoder: Decoder, piece: EngineTokens
    ) -> None:
        if piece.num_cached is not None and not call.row.num_cached_tokens:
            call.update(num_cached_tokens=piece.num_cached)
        if not piece.ids:
            return
        is_expert = piece.logprobs is None
        version = EXPERT_VERSION if is_expert else self.routing.version_of(engine.id, engine.version)
        start = len(call.sampled)
        if call.row.first_token_s is None:
            call.update(first_token_s=time.monotonic() - call.started)
        call.sampled += piece.ids
        call.versions += [version] * len(piece.ids)
        if piece.logprobs is None:
            call.logprobs = None
        elif call.logprobs is not None:
            call.logprobs += piece.logprobs
        texts = [decoder.push(token_id) for token_id in piece.ids]
        event = self._tokens_event(call, start, piece.ids, texts, piece.logprobs, version)
        end = len(call.sampled)
        live.append_soon(rollout.id, [event], lambda error: journal(call, end, error))

    def _tokens_event(
        self,
        call: LiveCall,
        start: int,
        ids: list[int],
        texts: list[str],
        logprobs: list[float] | None,
        version: int = 0,
    ) -> tuple[str, dict[str, Any]]:
        return "tokens", {
            "call": str(call.id),
            "parent": call.row.prompt_node,
            "start": start,
            "ids": ids,
            "texts": texts,
            "logprobs": logprobs,
            "version": version,
        }

    def _settle(self, call: LiveCall, start: int, piece: EngineTokens) -> bool:
        """Put the engine's own word, which comes with its last piece, in place of the provisional versions."""
        for begin, end, label in piece.versions:
            if label.lstrip("-").isdigit():
                end = min(end, len(call.sampled) - start)
                call.versions[start + begin : start + end] = [int(label)] * (end - begin)
        return bool(piece.versions)


def journal(call: LiveCall, end: int, error: RedisError | None) -> None:
    """The log has the tokens up to `end` (or cannot take them: then a reader must not wait for it)."""
    if error:
        logger.warning("The live log did not take tokens", extra={"call": str(call.id), "error": str(error)})
    call.journaled = max(call.journaled, end)
    call.changed.fire()


async def expert_answer(rollout: OpenRollout, call: LiveCall, program: str) -> AsyncIterator[EngineTokens]:
    """A scripted expert's turn in place of an engine's: no logprobs, version -1."""
    from environments.scripted.experts import expert_turn

    turn = sum(1 for node in rollout.tree.path(call.row.prompt_node) if node.role == "assistant")
    try:
        text = await asyncio.to_thread(expert_turn, Path(rollout.task_directory), program, turn)
    except (RuntimeError, ValueError, LookupError, OSError) as error:
        raise EngineRefused(f"The scripted expert has no answer: {error}") from error
    ids = [*rollout.renderer.encode_text(text), rollout.renderer.stop_token_ids[0]]
    if CALL.search(text) and not rollout.renderer.parse(ids).get("tool_calls"):
        raise EngineRefused(
            f"The expert writes tool calls as <tool_call> blocks, which {rollout.renderer.name} does not read. Play the "
            "demonstrations through a harness without tools, mini-swe-agent for one."
        )
    room = call.max_tokens - len(call.sampled)
    finish = "stop" if len(ids) <= room else "length"
    yield EngineTokens(ids=ids[:room], logprobs=None, finish_reason=finish)
