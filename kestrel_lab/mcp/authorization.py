"""OAuth 2.1 for MCP servers at an address: login in a browser, client credentials, and the file of tokens.

The flow itself is the SDK's (discovery, registration, PKCE, refresh, step-up: MCP authorization specification
of 2026-07-28).
"""

from __future__ import annotations

import asyncio
import html
import json
import os
import socket
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

from kestrel_lab.core.redaction import MIN_SECRET, Redactor
from kestrel_lab.core.sanitize import one_line
from kestrel_lab.host.filesystem import private_folder
from kestrel_lab.mcp.approvals import Approvals
from kestrel_lab.mcp.config import OAuth, ServerConfig
from kestrel_lab.mcp.elicitation import DECLINE, DONE, Person

if TYPE_CHECKING:
    import httpx2  # of the SDK: loaded on use
    from mcp.client.auth import OAuthClientProvider
    from mcp.client.auth.oauth2 import OAuthContext
    from mcp.shared.auth import AuthorizationCodeResult, OAuthClientInformationFull, OAuthToken

LOGIN_S = 300.0
"""Seconds a person has for a login."""
_PATH = "/callback"
_LONGEST_REQUEST = 16_384


@dataclass
class TokenFile:
    """The tokens and the client registration of one server, in a file of mode 0600; the `TokenStorage` of the
    SDK.

    The file belongs to the exact table of the server: tokens are never sent to another address.
    """

    path: Path
    config: ServerConfig
    oauth: OAuth
    redirect: str
    context: OAuthContext | None = None
    """State of the SDK's provider; the file keeps what a later process needs for a refresh."""

    @classmethod
    def path_of(cls, config: ServerConfig, env: Mapping[str, str]) -> Path:
        """Return the token file of a server, next to the user's approvals."""
        return Approvals.of(env).path.with_name("mcp-tokens") / f"{config.name}-{config.key[:16]}.json"

    def restore(self, context: OAuthContext) -> None:
        """Restore the SDK's state: without expiry and token endpoint it would log in again instead of
        refreshing.
        """
        from mcp.shared.auth import OAuthMetadata

        self.context, kept = context, read_tokens(self.path)
        context.token_expiry_time = kept.get("expires_at")
        if kept.get("metadata"):
            context.oauth_metadata = OAuthMetadata.model_validate(kept["metadata"])

    async def get_tokens(self) -> OAuthToken | None:
        """Return the kept tokens."""
        from mcp.shared.auth import OAuthToken

        kept = read_tokens(self.path).get("tokens")
        return None if kept is None else OAuthToken.model_validate(kept)

    async def set_tokens(self, tokens: OAuthToken) -> None:
        """Store tokens, their expiry and the refresh endpoint."""
        known = self.context
        expires = None if tokens.expires_in is None else time.time() + tokens.expires_in
        metadata = (
            None
            if known is None or known.oauth_metadata is None
            else known.oauth_metadata.model_dump(mode="json", exclude_none=True)
        )
        self._keep(
            tokens=tokens.model_dump(mode="json", exclude_none=True), metadata=metadata, expires_at=expires
        )

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        """Return the client that the table names, else the one registered earlier."""
        from mcp.shared.auth import OAuthClientInformationFull

        oauth = self.oauth
        if oauth.client_id:
            return OAuthClientInformationFull.model_validate(
                {
                    "client_id": oauth.client_id,
                    "client_secret": oauth.client_secret or None,
                    "redirect_uris": [self.redirect],
                    "token_endpoint_auth_method": "client_secret_basic" if oauth.client_secret else "none",
                    "issuer": oauth.issuer or None,
                }
            )
        kept = read_tokens(self.path).get("client")
        return None if kept is None else OAuthClientInformationFull.model_validate(kept)

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        """Keep a registration."""
        self._keep(client=client_info.model_dump(mode="json", exclude_none=True))

    def _keep(self, **changed: Any) -> None:
        # Read again: another process may have stored tokens since.
        content = {
            **read_tokens(self.path),
            "server": self.config.name,
            "url": self.config.url,
            "redirect": self.redirect,
            **changed,
        }
        private_folder(self.path.parent)
        number, name = tempfile.mkstemp(dir=self.path.parent, prefix=".tokens")  # of mode 0600
        with os.fdopen(number, "w", encoding="utf-8") as file:
            json.dump(content, file)
        # At once: a process that is killed here leaves the old tokens, not half a file.
        os.replace(name, self.path)


def read_tokens(path: Path) -> dict[str, Any]:
    """Return the contents of a token file; empty if missing or unreadable, which leads to a new login."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def token_redactor(config: ServerConfig, env: Mapping[str, str]) -> Redactor:
    """Return a redactor for the tokens of a server: a server may send back what it received."""
    kept = read_tokens(TokenFile.path_of(config, env)) if config.url else {}
    tokens, client = kept.get("tokens") or {}, kept.get("client") or {}
    words = (tokens.get("access_token"), tokens.get("refresh_token"), client.get("client_secret"))
    return Redactor(frozenset(word for word in words if isinstance(word, str) and len(word) >= MIN_SECRET))


def provider_of(config: ServerConfig, env: Mapping[str, str], person: Callable[[], Person]) -> httpx2.Auth:
    """Return the authentication for requests to an address; it calls `person()` if somebody must log in.

    Raises `UsageError` if a variable of the table is not set.
    """
    oauth, path = config.filled_oauth(env), TokenFile.path_of(config, env)
    # The server knows this client by one redirect address, so the port stays the same. It need not be free
    # now: only a login listens there.
    port = oauth.port or urlsplit(read_tokens(path).get("redirect", "")).port or _free_port()
    file = TokenFile(path, config, oauth, f"http://127.0.0.1:{port}{_PATH}")
    if oauth.id_token:
        return _enterprise_auth(config, oauth, file)
    provider = (
        _credentials(config, oauth, file)
        if oauth.client_credentials
        else _browser(config, oauth, file, person)
    )
    file.restore(provider.context)
    return provider


def _credentials(config: ServerConfig, oauth: OAuth, file: TokenFile) -> OAuthClientProvider:
    """Return the provider of a program that logs in by itself (RFC 6749 §4.4; with a key: RFC 7523)."""
    from mcp.client.auth.extensions.client_credentials import (
        ClientCredentialsOAuthProvider,
        PrivateKeyJWTOAuthProvider,
        SignedJWTParameters,
    )

    url, scope = config.url, oauth.scope or None
    if oauth.private_key:
        signed = SignedJWTParameters(
            issuer=oauth.client_id,
            subject=oauth.client_id,
            signing_key=oauth.private_key,
            signing_algorithm=oauth.algorithm,
        )
        return PrivateKeyJWTOAuthProvider(
            url, file, oauth.client_id, signed.create_assertion_provider(), scope=scope, issuer=oauth.issuer
        )
    return ClientCredentialsOAuthProvider(
        url, file, oauth.client_id, oauth.client_secret, scope=scope, issuer=oauth.issuer
    )


def _enterprise_auth(config: ServerConfig, oauth: OAuth, file: TokenFile) -> httpx2.Auth:
    """Return the provider that exchanges a token of a company's identity provider (RFC 8693, RFC 7523:
    SEP-990).
    """
    import httpx2
    from mcp.client.auth import OAuthTokenError
    from mcp.client.auth.extensions.identity_assertion import IdentityAssertionOAuthProvider

    async def exchanged(audience: str, resource: str) -> str:
        form = {
            "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
            "requested_token_type": "urn:ietf:params:oauth:token-type:id-jag",
            "subject_token": oauth.id_token,
            "subject_token_type": "urn:ietf:params:oauth:token-type:id_token",
            "audience": audience,
            "resource": resource,
            "client_id": oauth.id_client,
        }
        async with httpx2.AsyncClient() as client:
            answer = await client.post(oauth.id_endpoint, data=form)
        if answer.status_code != 200:
            raise OAuthTokenError(
                f"the identity provider does not exchange the id_token: {answer.status_code} "
                f"{one_line(answer.text, 200)}"
            )
        return str(answer.json()["access_token"])

    return IdentityAssertionOAuthProvider(
        config.url,
        file,
        oauth.client_id,
        oauth.client_secret,
        oauth.issuer,
        exchanged,
        oauth.scope or None,
        token_endpoint_auth_method="client_secret_basic",  # the name of a method  # noqa: S106
    )


def _browser(
    config: ServerConfig, oauth: OAuth, file: TokenFile, person: Callable[[], Person]
) -> OAuthClientProvider:
    """Return the provider for browser logins (authorization code with PKCE, RFC 8252 for the loopback
    address).
    """
    from mcp.client.auth import OAuthClientProvider
    from mcp.shared.auth import OAuthClientMetadata

    wanted = OAuthClientMetadata.model_validate(
        {
            "client_name": "kestrel_lab",
            "redirect_uris": [file.redirect],
            "grant_types": ["authorization_code", "refresh_token"],
            "response_types": ["code"],
            "scope": oauth.scope or None,
        }
    )
    listener: _Loopback | None = None

    async def redirect(url: str) -> None:
        nonlocal listener
        listener = await _Loopback.opened(file.redirect, url)
        text = (
            f"{config.name} ({config.url}) wants a login. Open this address in a browser, log in "
            f"there, then answer here:\n{url}"
        )
        done = False
        try:
            done = await person().ask(text, (DONE, DECLINE)) == DONE
        finally:
            # Also if the run was cancelled while the person was asked: the port must be free again.
            if not done:
                listener.close()
        if not done:
            raise ConnectionError(
                f"it wants a login, and nobody is here to log in: kestrel mcp login {config.name}"
            )

    async def answered() -> AuthorizationCodeResult:
        # The SDK always calls `redirect` before this.
        assert listener is not None
        with closing(listener), person().waiting():
            return await listener.result(config.name)

    return OAuthClientProvider(
        config.url, wanted, file, redirect, answered, client_metadata_url=oauth.client_metadata_url or None
    )


def _free_port() -> int:
    with socket.socket() as found:
        # Port 0: the system chooses a free one.
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class _Loopback:
    """Waits at an address of this machine for the redirect with which an authorisation server ends a
    login.
    """

    def __init__(self, url: str) -> None:
        self._state = (parse_qs(urlsplit(url).query).get("state") or [""])[0]
        self._got: asyncio.Future[dict[str, str]] = asyncio.get_running_loop().create_future()
        self._server: asyncio.Server | None = None

    @classmethod
    async def opened(cls, redirect: str, url: str) -> _Loopback:
        """Wait at `redirect` for the answer to `url`; raises `ConnectionError` if the port is taken or `url`
        is unsafe.
        """
        if urlsplit(url).scheme not in ("https", "http"):
            raise ConnectionError(
                f"the server's login page has an address that is not opened: {one_line(url, 200)}"
            )
        made, port = cls(url), urlsplit(redirect).port
        try:
            # The loopback address only (RFC 8252): no other machine can send the answer.
            made._server = await asyncio.start_server(made._serve, "127.0.0.1", port, limit=_LONGEST_REQUEST)
        except OSError as error:
            why = f"port {port} of this machine, which the login needs, cannot be had ({error.strerror})"
            raise ConnectionError(
                f"{why}: end the program that listens there; after kestrel mcp logout another port is taken"
            ) from error
        return made

    async def result(self, server: str) -> AuthorizationCodeResult:
        """Return what came; raises `ConnectionError` for a refusal and after `LOGIN_S` seconds."""
        from mcp.shared.auth import AuthorizationCodeResult

        try:
            async with asyncio.timeout(LOGIN_S):
                got = await self._got
        except TimeoutError:
            raise ConnectionError(
                f"nobody logged in within {LOGIN_S:.0f} s: kestrel mcp login {server}"
            ) from None
        if "error" in got:
            why = one_line(
                ": ".join(got[name] for name in ("error", "error_description") if name in got), 300
            )
            raise ConnectionError(f"the login was refused: {why}")
        return AuthorizationCodeResult(code=got.get("code", ""), state=got.get("state"), iss=got.get("iss"))

    def close(self) -> None:
        """Listen no longer."""
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with (
            closing(writer),
            suppress(OSError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError),
        ):
            head = await reader.readuntil(b"\r\n\r\n")
            target = urlsplit(head.split(b" ", 2)[1].decode("ascii"))
            got = {name: values[0] for name, values in parse_qs(target.query).items()}
            # Any page in the browser can come here: only who knows the secret of this login is listened to.
            ours = target.path == _PATH and got.get("state") == self._state
            if ours and not self._got.done():
                self._got.set_result(got)
            said = (
                "kestrel_lab has the answer. You can close this page."
                if ours
                else "kestrel_lab does not wait for this."
            )
            body = f"<!doctype html><title>kestrel_lab</title><p>{html.escape(said)}".encode()
            status = "200 OK" if ours else "404 Not Found"
            writer.write(
                f"HTTP/1.1 {status}\r\nContent-Type: text/html\r\nContent-Length: "
                f"{len(body)}\r\nConnection: close\r\n\r\n".encode()
                + body
            )
            await writer.drain()
