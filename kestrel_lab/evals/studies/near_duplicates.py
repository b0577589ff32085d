"""Near-duplicates: prompts that share most of their wording, grouped so that none is on both sides of a split.

MinHash with banding: A. Broder, "On the resemblance and containment of documents" (1997). Prompts whose sets of three-word
sequences overlap by 80 % are grouped with 98 % certainty, by 50 % with 40 %; chains of such prompts are one group. Sequences
that more than 20 prompts share are the form of a task, not the wording of one prompt, and count only where there is nothing else.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final
from zlib import crc32

_WORD: Final = re.compile(r"\w+")
_ROWS, _BANDS = 4, 8
_PRIME: Final = (1 << 31) - 1
_FORM: Final = 20


def near_duplicates(texts: Sequence[str]) -> Any:
    """Return for each text the number of its group, from 0 on."""
    import numpy as np
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    generator = np.random.default_rng(0)
    factor = generator.integers(1, _PRIME, (_ROWS * _BANDS, 1))
    offset = generator.integers(0, _PRIME, (_ROWS * _BANDS, 1))
    first: dict[tuple[int, bytes], int] = {}
    pairs: list[tuple[int, int]] = []
    sequences = [_sequences(text) for text in texts]
    shared = Counter(one for found in sequences for one in found)
    for number, found in enumerate(sequences):
        hashes = np.array([one for one in found if shared[one] <= _FORM] or [*found])
        signature = ((factor * hashes + offset) % _PRIME).min(axis=1).reshape(_BANDS, _ROWS)
        pairs += [(number, first.setdefault((band, row.tobytes()), number)) for band, row in enumerate(signature)]
    rows, columns = np.array(pairs or [(0, 0)]).T
    graph = coo_array((np.ones(len(rows)), (rows, columns)), shape=(max(1, len(texts)),) * 2)
    return connected_components(graph, directed=False)[1]


def _sequences(text: str) -> set[int]:
    """Return the hashes of all sequences of three words; of all words where there are fewer."""
    words = _WORD.findall(text.lower())
    return {crc32(" ".join(words[n : n + 3]).encode("utf-8", "surrogatepass")) % _PRIME for n in range(max(1, len(words) - 2))}
