"""A real PostgreSQL server of the tests' own: in a folder of its own, on a socket and a loopback port, as a
user without rights.
"""

import asyncio
import os
import pwd
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from ports import free_port
from waits import PATIENCE_S

PASSWORD = "hunter2-of-the-tests"


def program(name: str) -> str:
    """One of the server's programs, which Debian keeps off the PATH; skips the test where there is none."""
    known = [
        shutil.which(name),
        *map(str, sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), reverse=True)),
    ]
    found = next((one for one in known if one), None)
    if found is None:
        assert not os.environ.get("CI"), (
            "in CI the tests of PostgreSQL have to run: .ci/run installs the server"
        )
        pytest.skip("PostgreSQL is not installed")
    return str(Path(found).resolve())


class PostgresServer:
    """Started by `start`, gone after `stop`; each of `databases` is empty at first."""

    def __init__(self) -> None:
        self._client: Any = pytest.importorskip("asyncpg")
        self.folder = Path(
            tempfile.mkdtemp(prefix="kestrel-pg-", dir="/tmp")
        )  # a socket's path has to be short
        self.process: subprocess.Popen[bytes] | None = None
        self.port = free_port()
        # The server refuses to run as root.
        self._as: dict[str, Any] = {}
        if os.getuid() == 0:
            nobody = pwd.getpwnam("nobody")
            self._as = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
            os.chown(self.folder, nobody.pw_uid, nobody.pw_gid)
        secret = self.folder / "password"
        secret.write_text(PASSWORD)
        secret.chmod(0o644)
        initdb = [
            program("initdb"),
            "--no-sync",
            "-A",
            "scram-sha-256",
            "--pwfile",
            str(secret),
            "-U",
            "kestrel",
            "-E",
            "UTF8",
            "--locale=C",
        ]
        subprocess.run(
            [*initdb, str(self.folder / "data")], check=True, capture_output=True, cwd=self.folder, **self._as
        )

    def url(self, database: str = "postgres", *, password: str = PASSWORD, user: str = "kestrel") -> str:
        """The address of a database, by the port."""
        return f"postgresql://{user}:{password}@127.0.0.1:{self.port}/{database}"

    @property
    def by_socket(self) -> str:
        """The address by the socket."""
        return f"postgresql://kestrel:{PASSWORD}@/postgres?host={self.folder}&port={self.port}"

    def start(self) -> None:
        """Start it and wait until it answers."""
        options = {
            "listen_addresses": "127.0.0.1",
            "port": self.port,
            "unix_socket_directories": self.folder,
            "fsync": "off",
        }
        words = [word for key, value in options.items() for word in ("-c", f"{key}={value}")]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [program("postgres"), "-D", str(self.folder / "data"), *words],
                stdout=log,
                stderr=log,
                cwd=self.folder,
                **self._as,
            )
        until = time.monotonic() + PATIENCE_S
        while True:
            try:
                self.sql("SELECT 1")
            except (OSError, self._client.PostgresError):
                assert time.monotonic() < until and self.process.poll() is None, (
                    self.folder / "log"
                ).read_text()
                time.sleep(0.02)
            else:
                return

    def stop(self) -> None:
        """End it at once, as a machine that loses power would."""
        if self.process is not None:
            self.process.send_signal(3)  # SIGQUIT, which its children get from it
            self.process.wait()
            self.process = None

    def close(self) -> None:
        """End it and remove its folder."""
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def sql(self, *statements: str, database: str = "postgres") -> list[tuple[Any, ...]]:
        """Run statements as another user of the database would; returns the rows of the last."""

        async def run() -> list[tuple[Any, ...]]:
            connection = await self._client.connect(self.url(database), timeout=PATIENCE_S)
            try:
                for one in statements[:-1]:
                    await connection.execute(one)
                return [tuple(row) for row in await connection.fetch(statements[-1])]
            finally:
                connection.terminate()

        return asyncio.run(run())

    def database(self, name: str) -> str:
        """A new empty database; returns its address."""
        self.sql(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')
        self.sql(f'CREATE DATABASE "{name}"')
        return self.url(name)
