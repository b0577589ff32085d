"""Images of a run: kept beside the log under their names, and loaded when a model is asked."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Final

from kestrel_lab.core.calls import format_count
from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.events.union import Event, RunStarted
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.messages import IMAGE_BYTES, IMAGE_TYPES, ImagePart, Message
from kestrel_lab.eventlog.conversation import read_images
from kestrel_lab.eventlog.large_results import ResultStore
from kestrel_lab.eventlog.store import SessionStore
from kestrel_lab.tools.files.workspace import Workspace

_IMAGES: Final = attrgetter("images")
_BASE64: Final = re.compile(r"[A-Za-z0-9+/]+={0,2}")
_STARTS: Final = {
    "image/png": re.compile(rb"\x89PNG\r\n\x1a\n"),
    "image/jpeg": re.compile(rb"\xff\xd8\xff"),
    "image/gif": re.compile(rb"GIF8[79]a"),
    "image/webp": re.compile(rb"RIFF.{4}WEBP", re.DOTALL),
}


def store_images(
    images: Iterable[str | Path | ImagePart], workspace: Workspace, store: SessionStore
) -> list[dict[str, Json]]:
    """Keep the images a user gives beside the log; return what an event holds of them.

    A relative path counts from the workspace. Raises `UsageError` for a file that is not there, too large or
    no image that models take.
    """
    if isinstance(images, str | Path):
        raise UsageError(f"images is a list: write images=[{str(images)!r}]")
    return [
        _check_image(
            image if isinstance(image, ImagePart) else read_image(workspace.root / image), store
        ).as_json()
        for image in images
    ]


def read_image(path: Path) -> ImagePart:
    """Return the image in a file; raises `UsageError` where it is not there, too large or of a type that
    models do not take.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UsageError(f"the image {path} cannot be read: {error.strerror or error}") from error
    kind = next(
        (kind for kind, start in _STARTS.items() if start.match(content)), ""
    )  # a name may say another, which providers refuse
    if kind not in IMAGE_TYPES:
        raise UsageError(
            f"{path} is no image that models take: "
            f"{', '.join(one.removeprefix('image/') for one in IMAGE_TYPES)}"
        )
    return ImagePart.of(content, kind)


def _check_image(image: ImagePart, store: SessionStore) -> ImagePart:
    if image.media_type not in IMAGE_TYPES or not image.data:
        raise UsageError(
            f"an image of type {image.media_type!r} with {len(image.data)} characters of data cannot "
            "be given to a model: use ImagePart.of"
        )
    if len(image.data) > IMAGE_BYTES * 4 // 3:
        raise UsageError(
            f"an image has {len(base64.b64decode(image.data)):,} bytes, more than {IMAGE_BYTES:,}: "
            "make it smaller"
        )
    if not store.results.keep(image.data)[0]:
        raise UsageError("the image cannot be kept beside the log: make room on the disk")
    return image


def with_images(messages: Sequence[Message], store: SessionStore) -> Sequence[Message]:
    """Return `messages` with the bytes of their images; one that is no longer kept is named in the text
    instead.
    """
    if not any(map(_IMAGES, messages)):  # of each turn, over the whole conversation
        return messages
    return [_load_images(message, store) if message.images else message for message in messages]


def _load_images(message: Message, store: SessionStore) -> Message:
    found = [(image, store.results.path(image.blob)) for image in message.images]
    gone = sum(path is None for _, path in found)
    text = f"{message.text}\n[{format_count(gone, 'image')} no longer kept]".strip() if gone else message.text
    loaded = tuple(
        replace(image, data=path.read_text(encoding="ascii")) for image, path in found if path is not None
    )
    return replace(message, text=text, images=loaded)


def image_address(image: ImagePart, results: ResultStore) -> str:
    """Return a kept image as a `data:` address; empty for what is gone or no image."""
    path = results.path(image.blob)
    data = "" if path is None else path.read_text(encoding="ascii")
    known = image.media_type in IMAGE_TYPES and _BASE64.fullmatch(data)
    return f"data:{image.media_type};base64,{data}" if known else ""


def image_reader(results: ResultStore) -> Callable[[Mapping[str, Json]], str]:
    """Return what makes the address of an image of an event."""
    return lambda image: image_address(read_images([dict(image)])[0], results)


def images_html(events: Iterable[Event], store: SessionStore, most: int = 2_000_000) -> str:
    """Return what users gave a run to see, as HTML without addresses; behind `most` characters only their
    number. What tools gave stands below their calls.
    """
    named = [
        image for event in events if isinstance(event, RunStarted) for image in read_images(event.images)
    ]
    shown, left_out = list[str](), 0
    for image in dict.fromkeys(named):
        if not (address := image_address(image, store.results)):
            continue
        if len(address) > most:
            left_out += 1
            continue
        most -= len(address)
        shown.append(f'<img alt="image of the run" style="max-width:100%;max-height:24em" src="{address}">')
    more = f"<p><small>images not shown here, as they are large: {left_out}</small></p>" if left_out else ""
    return f"<div>{''.join(shown)}</div>{more}" if shown or more else ""
