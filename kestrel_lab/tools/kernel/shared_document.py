"""Shared documents of jupyter-collaboration."""

from __future__ import annotations

from kestrel_lab.tools.kernel.documents import Document, JupyterServer


def shared_document(_server: JupyterServer) -> Document | None:
    """Return nothing yet."""
    return None
