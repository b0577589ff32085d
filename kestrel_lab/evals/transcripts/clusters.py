"""Clusters of runs by what they did and said: counts of calls, errors and words, and average linkage."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kestrel_lab.core.json_types import content_key
from kestrel_lab.evals.transcripts.transcript import Transcript
from kestrel_lab.language.words import content_words, stem, stems

_ALIKE: Final = 0.18
"""Groups whose runs are less alike on average (cosine) stay apart."""
_TELLING: Final = 8
"""Words that tell a cluster apart and make its name."""
_KEPT: Final = 0.5
"""An earlier cluster with so much (cosine) of its profile in common lends its name."""
_REASON: Final = 3
"""How often the words of why it failed count: they are few, and say most."""

Weights = Mapping[str, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class Cluster:
    """Runs that failed alike."""

    name: str
    """Stable: of its most telling words, or that of the earlier cluster which it goes on."""
    words: Weights
    """The most telling words with their weights, the heaviest first; calls are written `tool()`, failed ones
    `tool() failed`.
    """
    members: tuple[str, ...]
    """Ids of runs, the most typical first."""

    @property
    def label(self) -> str:
        """Its most telling words."""
        return ", ".join(list(self.words)[:_TELLING])


def terms_of(run: Transcript, why: str) -> Counter[str]:
    """Return the counted terms of a run that failed: its calls, which of them failed, and the words of
    errors, of the answer and of `why` it failed.

    Words of the goal are left out: runs of one scenario are not alike for being asked the same.
    """
    found, asked = Counter[str](), stems(run.goal)
    for call in run.calls:
        found[f"{call.tool}()"] += 1
        if call.error is not None:
            found[f"{call.tool}() failed"] += 1
            found.update(_words(call.text, asked))
    if not run.answer.strip():
        found["no answer"] += _REASON
    found.update(_words(run.answer, asked))
    found.update({word: _REASON * count for word, count in _words(why, asked).items()})
    return found


def _words(text: str, asked: Collection[str]) -> Counter[str]:
    words = (word for word in content_words(text[:4_000]) if word.isalnum() and not word.isdigit())
    return Counter(word for word in words if stem(word) not in asked)


def cluster_runs(
    terms: Mapping[str, Counter[str]], earlier: Mapping[str, Weights] | None = None
) -> list[Cluster]:
    """Group runs by their counted terms, the largest cluster first; `earlier` clusters, by name, lend their
    names to those that go on.

    Deterministic: the same runs give the same clusters in whatever order they come. A run that is like no
    other is a cluster of its own.
    """
    shown = _surface_forms(terms.values())
    stems = {run: _stemmed(counts) for run, counts in sorted(terms.items())}
    vectors = _weighed(stems)
    runs = list(vectors)
    # Pairs grow with the square: of more runs a part, evenly spread, is grouped, and the rest joins the
    # nearest group.
    step = max(1, -(-len(runs) // 400))
    groups = _average_linkage({run: vectors[run] for run in runs[::step]})
    centres = [_mean([vectors[run] for run in group]) for group in groups]
    for place, run in enumerate(runs):
        if place % step:
            likes = [_dot(vectors[run], centre) for centre in centres]
            best = max(range(len(likes)), key=likes.__getitem__)
            if likes[best] >= _ALIKE:
                groups[best].append(run)
            else:
                groups.append([run])
                centres.append(vectors[run])
    return _named(groups, vectors, shown, earlier or {})


def _stemmed(counts: Counter[str]) -> Counter[str]:
    found: Counter[str] = Counter()
    for term, count in counts.items():
        found[_stem(term)] += count
    return found


def _stem(term: str) -> str:
    return term if "(" in term or " " in term else stem(term)


def _surface_forms(every: Iterable[Counter[str]]) -> dict[str, str]:
    """Return for each stem its most frequent word."""
    forms: dict[str, Counter[str]] = {}
    for counts in every:
        for term, count in counts.items():
            forms.setdefault(_stem(term), Counter())[term] += count
    return {short: min(found, key=lambda term: (-found[term], term)) for short, found in forms.items()}


def _weighed(terms: Mapping[str, Counter[str]]) -> dict[str, dict[str, float]]:
    """Return unit vectors of terms: the logarithm of the count, times how rare the term is among the runs."""
    runs_with = Counter(term for counts in terms.values() for term in counts)
    rare = {term: math.log((1 + len(terms)) / (0.5 + count)) for term, count in runs_with.items()}
    found = {}
    for run, counts in terms.items():
        # Lighter terms cost time and move nothing.
        heavy = sorted(((1 + math.log(count)) * rare[term], term) for term, count in counts.items())[-60:]
        size = math.sqrt(math.fsum(weight * weight for weight, _ in heavy)) or 1.0
        found[run] = {term: weight / size for weight, term in heavy if weight > 0}
    return found


def _dot(one: Weights, other: Weights) -> float:
    if len(one) > len(other):
        one, other = other, one
    return math.fsum(weight * other[term] for term, weight in one.items() if term in other)


def _mean(vectors: Sequence[Weights]) -> dict[str, float]:
    found: dict[str, float] = {}
    for vector in vectors:
        for term, weight in vector.items():
            found[term] = found.get(term, 0.0) + weight / len(vectors)
    return found


def _average_linkage(vectors: Mapping[str, Weights]) -> list[list[str]]:
    """Return groups of runs: the two groups whose runs are most alike on average become one, again and again,
    until none are alike enough.
    """
    names = list(vectors)
    groups = {place: [name] for place, name in enumerate(names)}
    like = {place: dict[int, float]() for place in groups}
    for a in groups:
        for b in range(a):
            like[a][b] = like[b][a] = _dot(vectors[names[a]], vectors[names[b]])
    best = {place: _nearest(row) for place, row in like.items()}
    while len(groups) > 1:
        a = max(groups, key=lambda place: (best[place][0], -place))
        alike, b = best[a]
        if alike < _ALIKE:
            break
        mine, others = len(groups[a]), len(groups[b])
        for place in groups.keys() - {a, b}:
            both = (mine * like[a][place] + others * like[b][place]) / (mine + others)
            like[a][place] = like[place][a] = both
            del like[place][b]
        groups[a] += groups.pop(b)
        del like[a][b], like[b], best[b]
        for place in groups:
            if place == a or best[place][1] in (a, b) or like[place].get(a, -1.0) > best[place][0]:
                best[place] = _nearest(like[place])
    return [sorted(group) for group in groups.values()]


def _nearest(row: Mapping[int, float]) -> tuple[float, int]:
    """Return how alike the nearest group is, and which it is."""
    alike, place = max(((alike, -place) for place, alike in row.items()), default=(-1.0, 0))
    return alike, -place


def _named(
    groups: Iterable[list[str]],
    vectors: Mapping[str, Weights],
    shown: Mapping[str, str],
    earlier: Mapping[str, Weights],
) -> list[Cluster]:
    whole = _mean(list(vectors.values()))
    found: list[tuple[list[str], dict[str, float]]] = []
    for group in groups:
        centre = _mean([vectors[run] for run in group])
        typical = sorted(group, key=lambda run: (-_dot(vectors[run], centre), run))
        # What all have is telling where the others do not have it.
        # A cluster is found again by these words, which are stored with its name.
        telling = sorted(centre, key=lambda term: (whole[term] * 0.5 - centre[term], term))[:24]
        found.append((typical, {shown[term]: round(centre[term], 4) for term in telling}))
    found.sort(key=lambda one: (-len(one[0]), one[0]))
    names = _earlier_names([words for _, words in found], earlier)
    return [
        Cluster(name=names.get(place) or _new_name(words), words=words, members=tuple(members))
        for place, (members, words) in enumerate(found)
    ]


def _earlier_names(profiles: Sequence[Weights], earlier: Mapping[str, Weights]) -> dict[int, str]:
    """Return by place the name of the earlier cluster that a cluster goes on, the most alike first; each name
    goes on once.
    """
    likes = sorted(
        (
            (-_cosine(words, before), place, name)
            for place, words in enumerate(profiles)
            for name, before in earlier.items()
        )
    )
    names: dict[int, str] = {}
    for unlike, place, name in likes:
        if -unlike >= _KEPT and place not in names and name not in names.values():
            names[place] = name
    return names


def _cosine(one: Weights, other: Weights) -> float:
    sizes = math.sqrt(_dot(one, one) * _dot(other, other))
    return _dot(one, other) / sizes if sizes else 0.0


def _new_name(words: Weights) -> str:
    telling = list(words)[:_TELLING]
    first = telling[0].replace("()", "").replace(" ", "-").replace("_", "-") if telling else "failed"
    return f"{first}-{content_key('cluster/1', sorted(telling))[:4]}"
