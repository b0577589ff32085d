"""What the pages of suites and comparisons hold, unpacked."""

import base64
import gzip
import json
import re
from pathlib import Path
from typing import Any


def unpack(text: str) -> Any:
    """Return packed JSON."""
    return json.loads(gzip.decompress(base64.b64decode(text)))


def page_index(path: Path) -> dict[str, Any]:
    """Return what a page shows before anything is opened."""
    html = path.read_text(encoding="utf-8")
    found: dict[str, Any] = unpack(re.findall(r'id="index">([^<]*)<', html)[0])
    return found


def page_details(path: Path) -> list[dict[str, Any]]:
    """Return the details of a page's trials, in the order of its index."""
    folder = page_index(path)["folder"]
    if folder:
        files = sorted((path.parent / folder).iterdir(), key=lambda one: int(one.stem))
        packed = [re.findall(r'"(.*)"', one.read_text(encoding="utf-8"))[0] for one in files]
    else:
        packed = re.findall(r'id="block-\d+">([^<]*)<', path.read_text(encoding="utf-8"))
    return [detail for block in packed for detail in unpack(block)]


def page_text(path: Path) -> str:
    """Return all that a page says, packed or not, as one text."""
    return "\n".join(
        [
            path.read_text(encoding="utf-8"),
            json.dumps(page_index(path), ensure_ascii=False),
            *(json.dumps(one, ensure_ascii=False) for one in page_details(path)),
        ]
    )
