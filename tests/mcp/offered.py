"""Where the server of these tests is, and how sessions with it are opened."""

from collections.abc import Callable
from pathlib import Path

from kestrel_lab.lab import Lab

SERVER = str(Path(__file__).with_name("offering_server.py"))
Open = Callable[..., Lab]
