"""A websocket client that talks ASGI to the application (channels.testing needs daphne, which we do not use)."""

# mypy: disable-error-code=no-untyped-call

from typing import Any

import orjson
from asgiref.testing import ApplicationCommunicator


class WebsocketCommunicator(ApplicationCommunicator):
    def __init__(self, application: Any, path: str, headers: list[tuple[bytes, bytes]]) -> None:
        scope = {
            "type": "websocket", "path": path, "raw_path": path.encode(), "query_string": b"", "headers": headers, "subprotocols": [],
        }  # fmt: skip
        super().__init__(application, scope)

    async def connect(self) -> bool:
        await self.send_input({"type": "websocket.connect"})
        return bool((await self.receive_output(5))["type"] == "websocket.accept")

    async def say(self, **request: Any) -> None:
        await self.send_bytes(orjson.dumps(request))

    async def send_bytes(self, data: bytes) -> None:
        await self.send_input({"type": "websocket.receive", "bytes": data})

    async def hear(self, timeout: float = 5) -> dict[str, Any]:
        output = await self.receive_output(timeout)
        assert output["type"] == "websocket.send", output
        return orjson.loads(output["bytes"])

    async def closed_with(self, timeout: float = 5) -> int:
        while True:
            output = await self.receive_output(timeout)
            if output["type"] == "websocket.close":
                return int(output["code"])

    async def disconnect(self) -> None:
        await self.send_input({"type": "websocket.disconnect", "code": 1000})
        await self.wait(5)
