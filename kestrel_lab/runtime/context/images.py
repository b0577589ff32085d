"""Images of a run: kept beside the log under their names, and loaded when a model is asked."""

from __future__ import annotations

import base64
import mimetypes
from collections.abc import Iterable, Sequence
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Final

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.messages import IMAGE_BYTES, IMAGE_TYPES, ImagePart, Message
from kestrel_lab.eventlog.store import SessionStore
from kestrel_lab.tools.files.workspace import Workspace

_IMAGES: Final = attrgetter("images")


def store_images(images: Iterable[str | Path | ImagePart], workspace: Workspace, store: SessionStore) -> list[dict[str, Json]]:
    """Keep the images a user gives beside the log; return what an event holds of them.

    A relative path counts from the workspace. Raises `UsageError` for a file that is not there, too large or no image that models take.
    """
    return [
        _check_image(image if isinstance(image, ImagePart) else read_image(workspace.root / image), store).as_json() for image in images
    ]


def read_image(path: Path) -> ImagePart:
    """Return the image in a file; raises `UsageError` where it is not there, too large or of a type that models do not take."""
    kind = mimetypes.guess_type(path.name)[0] or ""
    if kind not in IMAGE_TYPES:
        raise UsageError(f"{path} is no image that models take: {', '.join(one.removeprefix('image/') for one in IMAGE_TYPES)}")
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UsageError(f"the image {path} cannot be read: {error.strerror or error}") from error
    return ImagePart.of(content, kind)


def _check_image(image: ImagePart, store: SessionStore) -> ImagePart:
    if image.media_type not in IMAGE_TYPES or not image.data:
        raise UsageError(
            f"an image of type {image.media_type!r} with {len(image.data)} characters of data cannot be given to a model: use ImagePart.of"
        )
    if len(image.data) > IMAGE_BYTES * 4 // 3:
        raise UsageError(f"an image has {len(base64.b64decode(image.data)):,} bytes, more than {IMAGE_BYTES:,}: make it smaller")
    if not store.results.keep(image.data)[0]:
        raise UsageError("the image cannot be kept beside the log: make room on the disk")
    return image


def with_images(messages: Sequence[Message], store: SessionStore) -> Sequence[Message]:
    """Return `messages` with the bytes of their images; one that is no longer kept is named in the text instead."""
    if not any(map(_IMAGES, messages)):  # of each turn, over the whole conversation
        return messages
    return [_load_images(message, store) if message.images else message for message in messages]


def _load_images(message: Message, store: SessionStore) -> Message:
    found = [(image, store.results.path(image.blob)) for image in message.images]
    gone = sum(path is None for _, path in found)
    text = f"{message.text}\n[{gone} image{'' if gone == 1 else 's'} no longer kept]".strip() if gone else message.text
    loaded = tuple(replace(image, data=path.read_text(encoding="ascii")) for image, path in found if path is not None)
    return replace(message, text=text, images=loaded)
