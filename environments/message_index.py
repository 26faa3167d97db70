"""Search in what models, tools and people wrote, over many rollouts, without reading all of it.

From:  ended rollouts' Node rows; the controller's upkeep calls `index_ended` every few seconds.
To:    MessageText rows (words of 100,000-character pieces, GIN index); `containing` for the rollout tables.
Holds: a rollout is found by a text that a message of it contains, in any case, beginning at the beginning of a word:
       the index names the candidates, the messages themselves decide. Rollouts that are not indexed yet (they run, or
       ended a moment ago) are looked through in full. Neighbouring pieces overlap by more than the longest query.
Cost:  indexing runs outside the gateway's path: 30 ms for a rollout of a hundred messages; a query reads the index and
       the messages it names.
"""

import re

from django.contrib.postgres.search import SearchQuery
from django.db import connection, transaction
from django.db.models import Exists, F, OuterRef, Q, QuerySet, TextField, Value
from django.db.models.fields.json import KeyTextTransform
from django.db.models.functions import Coalesce, Concat
from django.utils import timezone

from environments.models import MessageText, Node, Rollout

PIECE_CHARS = 100_000
OVERLAP_CHARS = 1_000
MOST_QUERY_CHARS = 200
WORD = re.compile(r"[^\W_]+")
AT_ONCE = 20

INDEX = """
INSERT INTO environments_messagetext (rollout_id, node_index, piece, words)
SELECT node.rollout_id, node.index, piece.number,
       to_tsvector('simple', regexp_replace(substr(text.whole, piece.number * %(step)s + 1, %(size)s), '[^[:alnum:]]+', ' ', 'g'))
FROM environments_node node,
     LATERAL (SELECT concat_ws(E'\\n', node.message->>'content', node.message->>'reasoning', node.message->>'tool_calls')
              AS whole) text,
     generate_series(0, greatest(0, (length(text.whole) - %(overlap)s - 1) / %(step)s)) AS piece(number)
WHERE node.rollout_id = %(rollout)s AND text.whole <> ''
ON CONFLICT DO NOTHING
"""


def index_ended(limit: int = AT_ONCE) -> int:
    """Index ended rollouts that are not yet. returns how many. Two at once share the work by row locks."""
    number = 0
    while number < limit and _index_one():
        number += 1
    return number


def _index_one() -> bool:
    with transaction.atomic():
        waiting = Rollout.objects.filter(state=Rollout.State.ENDED, messages_indexed_at=None)
        rollout = waiting.select_for_update(skip_locked=True, no_key=True).only("pk").order_by("ended_at").first()
        if rollout is None:
            return False
        with connection.cursor() as cursor:
            cursor.execute(
                INDEX,
                {
                    "rollout": rollout.pk, "size": PIECE_CHARS, "step": PIECE_CHARS - OVERLAP_CHARS,
                    "overlap": OVERLAP_CHARS,
                },
            )  # fmt: skip
        Rollout.objects.filter(pk=rollout.pk).update(messages_indexed_at=timezone.now())
        return True


def containing(rollouts: "QuerySet[Rollout]", text: str) -> "QuerySet[Rollout]":
    """Those of which a message contains the text."""
    words = WORD.findall(text.lower())
    matching = nodes_with_text(text)
    whole = Exists(matching.filter(rollout=OuterRef("pk")))
    if not words:
        return rollouts.filter(whole)
    named = MessageText.objects.filter(words=SearchQuery(raw_query(words), config="simple", search_type="raw"))
    found = named.filter(Exists(matching.filter(rollout=OuterRef("rollout"), index=OuterRef("node_index")))).values(
        "rollout"
    )
    return rollouts.filter(Q(pk__in=found) | Q(Q(messages_indexed_at=None) & Q(whole)))


def raw_query(words: list[str]) -> str:
    """All words whole but the last, which may go on."""
    return " & ".join([f"'{word}'" for word in words[:-1]] + [f"'{words[-1]}':*"])


def nodes_with_text(text: str) -> "QuerySet[Node]":
    """Nodes whose message contains it, whatever the case."""
    parts = [
        Coalesce(KeyTextTransform(key, "message"), Value(""), output_field=TextField())
        for key in ("content", "reasoning", "tool_calls")
    ]
    joined = Concat(parts[0], Value("\n"), parts[1], Value("\n"), parts[2], output_field=TextField())
    return Node.objects.annotate(whole_text=joined).filter(whole_text__icontains=text).order_by(F("pk").asc())
