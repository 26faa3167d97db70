"""A tokenizer in which text cannot forge a special token, and which decodes as tokens come.

From:  chatml.py, whole.py.
To:    ids; text.
Holds: `encode_text` never gives a special token's id; `encode_template` gives one only where the *template* wrote it.
       Joined pushes plus flush are the decoded answer.
Never: imports transformers (0.5 GB and 4 s in every gateway); `tokenizers` is enough.
"""

import codecs
import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from environments.rendering.protocol import RendererError

PRIVATE_USE = 0xF0000
"""First code point of the plane that placeholders are taken from."""


SURROGATE = re.compile("[\ud800-\udfff]")


def read_json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise RendererError(f"{path} is not JSON: {error}. Fetch the model again.") from error
    return data if isinstance(data, dict) else {}


@lru_cache(maxsize=1)
def byte_of_letter() -> dict[str, int]:
    """The byte that each letter of a byte-level vocabulary stands for (printable Latin-1 as itself, others from U+0100)."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}


class ModelTokenizer:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        path = directory / "tokenizer.json"
        if not path.is_file():
            raise RendererError(f"{path} is missing. Save the model's fast tokenizer there (save_pretrained).")
        self._json = path.read_text()
        self._plain = Tokenizer.from_str(self._json)
        self._plain.encode_special_tokens = True
        added = self._plain.get_added_tokens_decoder()
        self.special_ids = {token.content: token_id for token_id, token in added.items() if token.special}
        self._added = {token_id: token.content for token_id, token in added.items()}
        self._special_pattern = re.compile(
            "(" + "|".join(map(re.escape, sorted(self.special_ids, key=len)[::-1])) + ")"
        )
        self._is_byte_level = "ByteLevel" in json.dumps(json.loads(self._json).get("decoder"))
        self._bytes: dict[int, bytes] = {}

    def digest(self) -> str:
        return hashlib.sha256(self._json.encode()).hexdigest()

    def encode_text(self, text: str) -> list[int]:
        """Lone surrogates, which no tokenizer knows, become U+FFFD."""
        safe = SURROGATE.sub("\N{REPLACEMENT CHARACTER}", text)
        return self._plain.encode(safe, add_special_tokens=False).ids if safe else []

    def encode_template(self, text: str, hidden: dict[str, str] | None = None) -> list[int]:
        """Text written by the template: its special tokens are ids. `hidden` placeholders are contents' own texts."""
        ids: list[int] = []
        for piece in self._special_pattern.split(text) if self.special_ids else [text]:
            special = self.special_ids.get(piece)
            if special is not None:
                ids.append(special)
                continue
            for placeholder, original in (hidden or {}).items():
                piece = piece.replace(placeholder, original)
            ids += self.encode_text(piece)
        return ids

    def hide_specials(self, texts: Sequence[str]) -> tuple[list[str], dict[str, str]]:
        """`texts` with special-token-looking text replaced by placeholders, and what each placeholder hides."""
        joined = "".join(texts)
        found = sorted(set(self._special_pattern.findall(joined))) if self.special_ids else []
        free: Iterator[str] = (chr(n) for n in range(PRIVATE_USE, PRIVATE_USE + 65534) if chr(n) not in joined)
        hidden = {next(free): special for special in found}
        names = {special: placeholder for placeholder, special in hidden.items()}
        return [self._special_pattern.sub(lambda m: names[m[0]], text) if found else text for text in texts], hidden

    def starts_special(self, text: str, position: int = 0) -> bool:
        return bool(self.special_ids) and self._special_pattern.match(text, position) is not None

    def is_clean(self, token: str) -> bool:
        """Whether this special token splits text without taking neighbouring spaces along."""
        added = self._plain.get_added_tokens_decoder()[self.special_ids[token]]
        return not (added.lstrip or added.rstrip or added.single_word)

    def token_bytes(self, token_id: int) -> bytes:
        known = self._bytes.get(token_id)
        if known is None:
            known = self._bytes[token_id] = self._read_bytes(token_id)
        return known

    def _read_bytes(self, token_id: int) -> bytes:
        if token_id in self._added:
            return self._added[token_id].encode()
        letters = self._plain.id_to_token(token_id) or ""
        table = byte_of_letter()
        return bytes(table[letter] for letter in letters) if all(c in table for c in letters) else letters.encode()

    def decoder(self, stop_token_ids: Sequence[int]) -> "ByteDecoder | WindowDecoder":
        return (
            ByteDecoder(self, stop_token_ids)
            if self._is_byte_level
            else WindowDecoder(self._plain, self._added, stop_token_ids)
        )

    def decode(self, ids: Sequence[int], stop_token_ids: Sequence[int]) -> str:
        decoder = self.decoder(stop_token_ids)
        return "".join(map(decoder.push, ids)) + decoder.flush()


class ByteDecoder:
    """Byte-level vocabularies: each token is bytes, so an incremental UTF-8 decoder is exact and O(1) a token."""

    def __init__(self, tokenizer: ModelTokenizer, stop_token_ids: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._stop = frozenset(stop_token_ids)
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        return "" if token_id in self._stop else self._utf8.decode(self._tokenizer.token_bytes(token_id))

    def flush(self) -> str:
        return self._utf8.decode(b"", final=True)


class WindowDecoder:
    """Other vocabularies: decode a short window with its left context, hold back while it ends in U+FFFD."""

    HELD = 6
    """Most tokens held for one code point: four bytes, and a margin."""

    def __init__(self, tokenizer: Any, added: dict[int, str], stop_token_ids: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._added = added
        self._stop = frozenset(stop_token_ids)
        self._context: list[int] = []
        self._pending: list[int] = []

    def push(self, token_id: int) -> str:
        if token_id in self._stop:
            return ""
        if token_id in self._added:
            text = self.flush() + self._added[token_id]
            self._context = []
            return text
        self._pending.append(token_id)
        text = self._new_text()
        if text.endswith("\N{REPLACEMENT CHARACTER}") and len(self._pending) < self.HELD:
            return ""
        return self._accept(text)

    def flush(self) -> str:
        return self._accept(self._new_text()) if self._pending else ""

    def _new_text(self) -> str:
        before = self._tokenizer.decode(self._context, skip_special_tokens=False)
        return self._tokenizer.decode(self._context + self._pending, skip_special_tokens=False)[len(before) :]

    def _accept(self, text: str) -> str:
        self._context, self._pending = (self._context + self._pending)[-self.HELD :], []
        return text
