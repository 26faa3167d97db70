"""Messages to token ids and back, for each model.

From:  environments.gateway and training ask `load_renderer(model)`.
To:    a Renderer (protocol.py).
Holds: which renderer a model has was decided and proven when it was added (environments.catalog) and is stored with it.

chatml.py     our append-only renderer, from frames proven on the model's own chat template
whole.py      any chat template, in full at each request
library.py    the `renderers` package, for the families it knows
scripted.py   bytes; no model files
"""

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import orjson

from environments.rendering.protocol import Decoder, Message, Renderer, RendererError, Tool
from environments.rendering.scripted import ScriptedRenderer

if TYPE_CHECKING:
    from environments.models import Model

__all__ = ["RENDERERS", "Decoder", "Message", "Renderer", "RendererError", "Tool", "load_renderer"]

RENDERERS = ("chatml", "whole", "scripted")
"""Names for Model.renderer, besides `renderers:<family>` of the renderers package."""


def load_renderer(model: "Model") -> Renderer:
    """The model's renderer; one object per model directory and setting. Raises RendererError."""
    if model.renderer == "scripted":
        return ScriptedRenderer()
    return _load(model.renderer, model.path, orjson.dumps(model.settings, option=orjson.OPT_SORT_KEYS))


@lru_cache(maxsize=32)
def _load(name: str, path: str, settings: bytes) -> Renderer:
    from environments.rendering.chatml import ChatmlRenderer
    from environments.rendering.frames import Frames
    from environments.rendering.library import PREFIX, load_library_renderer
    from environments.rendering.tokens import ModelTokenizer
    from environments.rendering.whole import WholeRenderer

    stored = orjson.loads(settings)
    directory = Path(stored.get("directory") or path)
    tokenizer = ModelTokenizer(directory)
    stop_token_ids = stored.get("stop_token_ids", [])
    if name.startswith(PREFIX):
        return load_library_renderer(name, directory, tokenizer)
    if name == "whole":
        return WholeRenderer(directory, tokenizer, stop_token_ids)
    if name != "chatml":
        raise RendererError(f"There is no renderer {name!r}. Use one of {', '.join(RENDERERS)} or renderers:<family>.")
    frames = Frames.from_json(stored["frames"]) if "frames" in stored else None
    if frames is None:
        raise RendererError(f"Nothing is proven about the chat template of {path}. Add the model again.")
    return ChatmlRenderer(directory, tokenizer, frames, stop_token_ids)
