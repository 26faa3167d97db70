"""Text that JSON and Postgres refuse (NUL, lone surrogates), written reversibly; fast JSON that survives it.

From:  whatever stores or logs what models, tools and harnesses wrote.
Holds: restore_text(escape_text(text)) == text for every str.
"""

import json
import re
from typing import Any

import orjson

MARK = "\uf8ff"
"""Private-use escape: MARK + "0" is NUL, MARK + "m" is MARK itself, MARK + "sd800" is the surrogate U+D800."""
REFUSED = re.compile("[\x00\uf8ff\ud800-\udfff]")
ESCAPED = re.compile("\uf8ff(0|m|s[0-9a-f]{4})")


def escape_text(text: str) -> str:
    return text if REFUSED.search(text) is None else REFUSED.sub(_escape, text)


def restore_text(text: str) -> str:
    return text if MARK not in text else ESCAPED.sub(_restore, text)


def escape_json(value: Any) -> Any:
    """The same JSON value with every string in it, keys too, escaped."""
    if isinstance(value, str):
        return escape_text(value)
    if isinstance(value, dict):
        return {escape_text(str(key)): escape_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [escape_json(item) for item in value]
    return value


def restore_json(value: Any) -> Any:
    if isinstance(value, str):
        return restore_text(value)
    if isinstance(value, dict):
        return {restore_text(key): restore_json(item) for key, item in value.items()}
    if isinstance(value, list):
        return [restore_json(item) for item in value]
    return value


def dump_json(value: Any) -> bytes:
    """As JSON bytes that Postgres takes too."""
    try:
        raw = orjson.dumps(value, option=orjson.OPT_SERIALIZE_UUID)
    except (TypeError, UnicodeEncodeError):
        return orjson.dumps(escape_json(value), option=orjson.OPT_SERIALIZE_UUID, default=str)
    if b"\\u0000" in raw or b"\xef\xa3\xbf" in raw:
        return orjson.dumps(escape_json(value), option=orjson.OPT_SERIALIZE_UUID)
    return raw


def dump_wire_json(value: Any) -> bytes:
    """As JSON bytes for a client, unescaped; a lone surrogate goes as \\udxxx."""
    try:
        return orjson.dumps(value)
    except (TypeError, UnicodeEncodeError):
        return json.dumps(value, separators=(",", ":")).encode()


def load_json(raw: bytes) -> Any:
    """Raises ValueError. Lone surrogates are kept."""
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError:
        try:
            return json.loads(raw.decode("utf-8", "surrogatepass"))
        except RecursionError:
            raise ValueError("it is nested too deeply") from None


def replace_surrogates(text: str) -> str:
    """What a tokenizer can take."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _escape(match: re.Match[str]) -> str:
    letter = match[0]
    if letter == "\x00":
        return MARK + "0"
    return MARK + "m" if letter == MARK else f"{MARK}s{ord(letter):04x}"


def _restore(match: re.Match[str]) -> str:
    code = match[1]
    if code == "0":
        return "\x00"
    return MARK if code == "m" else chr(int(code[1:], 16))
