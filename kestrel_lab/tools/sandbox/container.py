"""Containers for commands, through the HTTP interface of docker or podman on their Unix socket.

One client serves both, since podman speaks docker's interface; httpx is there already, docker's own library
is one more package, and the command lines of the two would have to be read as text.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import struct
import tarfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.sanitize import one_line
from kestrel_lab.tools.shell.process import ProcessEnd, Sink, Stopped

if TYPE_CHECKING:
    import httpx

INSTALL: Final = "install and start docker or podman (kestrel doctor says whether one answers)"
_LABEL: Final = "kestrel_lab"
_MOST_PROCESSES: Final = 512
_HEADER: Final = struct.Struct(">BxxxI")
"""Before each piece of output: 1 for standard output or 2 for errors, and its length."""
_SHELL: Final = (
    'if command -v bash >/dev/null; then exec bash --noprofile --norc -c "$0"; else exec sh -c "$0"; fi'
)
_BUILD_S: Final = 3_600.0
_CALL_S: Final = 60.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Engine:
    """A container engine that answers on this machine."""

    name: str
    """`docker` or `podman`, with its version."""
    socket: str

    async def image(self, name: str) -> tuple[str, str]:
        """Return the id of an image and its working folder; it is pulled if it is not there.

        Raises `UsageError` if it cannot be had.
        """
        async with self.client() as client:
            found = await client.get(f"/images/{name}/json")
            if found.status_code == 404:
                await _whole(
                    client.stream("POST", "/images/create", params={"fromImage": _tagged(name)}),
                    f"the image {name!r} cannot be pulled",
                )
                found = await client.get(f"/images/{name}/json")
            about = _checked(found, f"the image {name!r} cannot be had")
            return str(about["Id"]), str((about.get("Config") or {}).get("WorkingDir") or "")

    async def build(self, dockerfile: Path) -> tuple[str, str]:
        """Build an image from a Dockerfile and the folder that it is in; return its id and working folder."""
        content = await asyncio.to_thread(_packed, dockerfile.parent)
        what = f"the image of {dockerfile} cannot be built"
        async with self.client() as client:
            built = client.stream(
                "POST",
                "/build",
                params={"dockerfile": dockerfile.name, "labels": json.dumps({_LABEL: "trial"}), "rm": "true"},
                content=content,
                headers={"content-type": "application/x-tar"},
            )
            lines = await _whole(built, what)
        ids = [line["aux"]["ID"] for line in lines if "ID" in (line.get("aux") or {})]
        words = "".join(str(line.get("stream") or "") for line in lines).split("Successfully built ")
        if not ids and len(words) < 2:
            raise UsageError(f"{what}: the engine does not say which image it built")
        return await self.image(str(ids[-1]) if ids else words[-1].split()[0])

    async def files(self, image: str, folder: str) -> bytes:
        """Return what an image has in `folder` as a tar archive; empty if it has no such folder."""
        async with self._created({"Image": image, "Cmd": ["true"]}) as container, self.client() as client:
            found = await client.get(f"/containers/{container}/archive", params={"path": folder})
            return found.content if found.status_code == 200 else b""

    @asynccontextmanager
    async def container(
        self, image: str, *, workspace: Path, root: str, network: bool, memory: int | None
    ) -> AsyncIterator[Container]:
        """Start a container of `image` in which `workspace` is at `root`; it is removed at the end.

        Its processes gain no privileges, and reach no network unless that is allowed.
        """
        host = {
            "Binds": [f"{workspace}:{root}"],
            "NetworkMode": "bridge" if network else "none",
            "SecurityOpt": ["no-new-privileges"],
            "PidsLimit": _MOST_PROCESSES,
            "Init": True,
            **({} if memory is None else {"Memory": memory, "MemorySwap": memory}),
        }
        # Whatever the image would start: the container waits for commands.
        wanted = {"Image": image, "Entrypoint": ["sleep"], "Cmd": ["infinity"], "WorkingDir": root}
        async with self._created({**wanted, "HostConfig": host}) as name:
            await self.call("POST", f"/containers/{name}/start", "a container does not start")
            made = Container(engine=self, id=name, root=root, workspace=workspace)
            try:
                yield made
            finally:
                # Else what its root made in the workspace cannot be removed by anybody but root.
                argv = ["chown", "-R", f"{os.getuid()}:{os.getgid()}", root]
                with suppress(UsageError):
                    await made.run(argv, stdout=_drop, stderr=_drop, timeout_s=_CALL_S)

    @asynccontextmanager
    async def client(self, timeout_s: float = _CALL_S) -> AsyncIterator[httpx.AsyncClient]:
        """Open a client; raises `UsageError` where the engine does not answer."""
        import httpx

        async with httpx.AsyncClient(
            transport=httpx.AsyncHTTPTransport(uds=self.socket),
            base_url="http://engine/v1.41",
            timeout=timeout_s,
        ) as client:
            try:
                yield client
            except httpx.HTTPError as error:
                why = f"{type(error).__name__}: {error}"
                raise UsageError(
                    f"{self.name} at {self.socket} does not answer ({why}): {INSTALL}"
                ) from error

    async def call(self, method: str, path: str, what: str, **request: Any) -> dict[str, Any]:
        """Return the engine's answer; raises `UsageError` that begins with `what` for a refusal."""
        async with self.client() as client:
            return _checked(await client.request(method, path, **request), what)

    @asynccontextmanager
    async def _created(self, wanted: Mapping[str, Any]) -> AsyncIterator[str]:
        body = {**wanted, "Labels": {_LABEL: "trial"}}
        name = (await self.call("POST", "/containers/create", "a container cannot be made", json=body))["Id"]
        try:
            yield str(name)
        finally:
            await asyncio.shield(
                self.call(
                    "DELETE",
                    f"/containers/{name}",
                    "a container cannot be removed",
                    params={"force": "true", "v": "true"},
                )
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class Container:
    """A container at work, with a workspace of this machine in it."""

    engine: Engine = field(repr=False)
    id: str
    root: str
    """The place of the workspace in it."""
    workspace: Path
    """Its place on this machine."""

    async def shell(
        self, command: str, folder: str, *, stdout: Sink, stderr: Sink, timeout_s: float
    ) -> ProcessEnd:
        """Run a command line with bash, or sh where there is none, in a folder of the workspace."""
        return await self.run(
            ["sh", "-c", _SHELL, command], folder=folder, stdout=stdout, stderr=stderr, timeout_s=timeout_s
        )

    async def run(
        self, argv: Sequence[str], *, folder: str = ".", stdout: Sink, stderr: Sink, timeout_s: float
    ) -> ProcessEnd:
        """Run a program and wait for it.

        When its time is up, when an output sink wants no more, and when the call is cancelled, everything
        that runs in the container is killed. Raises `UsageError` where the engine fails.
        """
        began = time.monotonic()
        stopped: Stopped = ""
        async with self.engine.client(timeout_s + _CALL_S) as client:
            wanted = {"Cmd": [*argv], "AttachStdout": True, "AttachStderr": True}
            place = str(PurePosixPath(self.root) / folder)
            name = _checked(
                await client.post(f"/containers/{self.id}/exec", json={**wanted, "WorkingDir": place}),
                f"{argv[0]!r} cannot be run in a container",
            )["Id"]
            try:
                async with asyncio.timeout(timeout_s):
                    if not await _pass_on(client, name, stdout, stderr):
                        stopped = "output"
            except TimeoutError:
                stopped = "timeout"
            except asyncio.CancelledError:
                await asyncio.shield(self._kill(client))
                raise
            if stopped:
                await self._kill(client)
            ended = _checked(await client.get(f"/exec/{name}/json"), "a command's end is not known")
        code = ended.get("ExitCode")
        return ProcessEnd(
            exit_code=-9 if code is None else int(code), seconds=time.monotonic() - began, stopped=stopped
        )

    async def _kill(self, client: httpx.AsyncClient) -> None:
        # -1: every process but the container's first, which waits for commands, and this one.
        name = _checked(
            await client.post(f"/containers/{self.id}/exec", json={"Cmd": ["sh", "-c", "kill -9 -1"]}),
            "a command cannot be killed",
        )["Id"]
        await client.post(f"/exec/{name}/start", json={"Detach": True})


async def find_engine(env: Mapping[str, str]) -> Engine | None:
    """Return the engine that answers: the one of `DOCKER_HOST`, else docker or podman; `None` without any."""
    import httpx

    for socket in filter(os.path.exists, sockets(env)):
        async with httpx.AsyncClient(
            transport=httpx.AsyncHTTPTransport(uds=socket), base_url="http://engine", timeout=5
        ) as client:
            with suppress(httpx.HTTPError, ValueError, KeyError):
                about = (await client.get("/version")).json()
                parts = {str(part["Name"]).lower() for part in about.get("Components") or ()}
                kind = "podman" if any("podman" in part for part in parts) else "docker"
                return Engine(name=f"{kind} {about['Version']}", socket=socket)
    return None


def sockets(env: Mapping[str, str]) -> list[str]:
    """Return the sockets at which an engine may answer; that of `DOCKER_HOST` alone where it is set."""
    if host := env.get("DOCKER_HOST"):
        return [host.removeprefix("unix://")] if host.startswith("unix://") else []
    own = env.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}"
    return [
        "/var/run/docker.sock",
        f"{own}/docker.sock",
        f"{own}/podman/podman.sock",
        "/run/podman/podman.sock",
    ]


async def _pass_on(client: httpx.AsyncClient, name: str, stdout: Sink, stderr: Sink) -> bool:
    """Hand the output of a command on as it comes, to its end; returns whether all of it was wanted."""
    waiting = b""
    async with client.stream("POST", f"/exec/{name}/start", json={"Detach": False, "Tty": False}) as output:
        if output.is_error:
            await output.aread()
            _checked(output, "a command cannot be started")
        async for piece in output.aiter_raw():
            waiting += piece
            while len(waiting) >= _HEADER.size:
                kind, length = _HEADER.unpack_from(waiting)
                if len(waiting) < _HEADER.size + length:
                    break
                part, waiting = (
                    waiting[_HEADER.size : _HEADER.size + length],
                    waiting[_HEADER.size + length :],
                )
                if not (stderr if kind == 2 else stdout)(part):
                    return False
    return True


async def _whole(answer: Any, what: str) -> list[dict[str, Any]]:
    """Return the lines of a long answer; raises `UsageError` for the first that reports an error."""
    found = []
    async with asyncio.timeout(_BUILD_S), answer as lines:
        if lines.is_error:
            await lines.aread()
            _checked(lines, what)
        async for line in lines.aiter_lines():
            try:
                said = json.loads(line)
            except ValueError:
                continue
            if isinstance(said, dict):
                found.append(said)
            if error := found and found[-1].get("error"):
                raise UsageError(f"{what}: {one_line(str(error), 300)}")
    return found


def _checked(answer: httpx.Response, what: str) -> dict[str, Any]:
    try:
        said = answer.json() if answer.content else {}
    except ValueError:
        said = {"message": answer.text}
    if answer.is_error:
        raise UsageError(f"{what}: {one_line(str(said.get('message') or answer.status_code), 300)}")
    return dict(said)


def _tagged(name: str) -> str:
    """Return the name of an image with a tag: without one an engine may pull all of them."""
    return name if ":" in name.rpartition("/")[2] or "@" in name else f"{name}:latest"


def _packed(folder: Path) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        archive.add(folder, arcname=".")
    return packed.getvalue()


def _drop(_: bytes) -> bool:
    return True
