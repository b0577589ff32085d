"""Where the server of these tests is, and how sessions with it are opened."""

from collections.abc import Callable
from pathlib import Path

from kestrel_lab.runtime.session import Session

SERVER = str(Path(__file__).with_name("offering_server.py"))
Open = Callable[..., Session]
