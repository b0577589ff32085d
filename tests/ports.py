"""Ports for servers that are started by their number, or started again at the same address."""

import random
import socket

_BELOW_THE_SYSTEMS_OWN = range(20_000, 32_000)
"""Linux hands out ports from 32768 on by itself, macOS from 49152."""


def free_port() -> int:
    """Return a port that nobody has and that the system gives to nobody who asks for any port.

    One that the system chose may be somebody else's connection by the time that a program has started to
    listen on it.
    """
    while True:
        port = random.SystemRandom().choice(_BELOW_THE_SYSTEMS_OWN)
        with socket.socket() as tried:
            try:
                tried.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
