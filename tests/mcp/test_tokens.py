"""Tokens of MCP servers: the file that keeps them, what leaves nothing of them in answers, and the page that
a login comes back to.
"""

import asyncio
import json
import socket
import stat
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from mcp.shared.auth import OAuthClientInformationFull, OAuthMetadata, OAuthToken
from waits import PATIENCE_S

from kestrel_lab.mcp import authorization
from kestrel_lab.mcp.authorization import (
    TokenFile,
    provider_of,
    read_tokens,
    token_redactor,
)
from kestrel_lab.mcp.config import OAuth, ServerConfig
from kestrel_lab.mcp.elicitation import DECLINE, DONE, Person

URL = "https://mcp.example/mcp"
METADATA = {
    "issuer": "https://as.example",
    "authorization_endpoint": "https://as.example/a",
    "token_endpoint": "https://as.example/t",
}


class Context:
    """What the SDK's provider knows."""

    token_expiry_time: float | None = None
    oauth_metadata: OAuthMetadata | None = None


def file_of(folder: Path, **oauth: Any) -> TokenFile:
    """The file of a server with this login."""
    config = ServerConfig(name="g", url=URL, oauth=OAuth(**oauth))
    env = {"XDG_CONFIG_HOME": str(folder)}
    return TokenFile(TokenFile.path_of(config, env), config, config.oauth, "http://127.0.0.1:7/callback")


def test_tokens_are_kept_with_what_refreshes_them(tmp_path: Path) -> None:
    """For their owner alone, with the time they expire and where they are refreshed; a registration is kept
    beside them.
    """
    file = file_of(tmp_path)
    assert file.path == tmp_path / "kestrel/mcp-tokens" / f"g-{file.config.key[:16]}.json"
    assert (asyncio.run(file.get_tokens()), asyncio.run(file.get_client_info())) == (None, None)
    token = OAuthToken(access_token="access", refresh_token="refresh", expires_in=60)
    asyncio.run(file.set_tokens(token))
    assert (read_tokens(file.path)["metadata"], asyncio.run(file.get_tokens())) == (None, token)
    context: Any = Context()
    file.restore(context)
    before = time.time()
    context.oauth_metadata = OAuthMetadata.model_validate(METADATA)
    asyncio.run(file.set_tokens(token))
    client = OAuthClientInformationFull(client_id="mine", redirect_uris=["http://127.0.0.1:7/callback"])  # type: ignore[list-item]
    asyncio.run(file.set_client_info(client))
    kept = read_tokens(file.path)
    assert before + 60 <= kept["expires_at"] <= time.time() + 60
    assert (kept["server"], kept["url"], kept["redirect"]) == ("g", URL, file.redirect)
    assert (stat.S_IMODE(file.path.stat().st_mode), stat.S_IMODE(file.path.parent.stat().st_mode)) == (
        0o600,
        0o700,
    )
    assert [path.name for path in file.path.parent.iterdir()] == [file.path.name]
    later: Any = Context()
    file_of(tmp_path).restore(later)
    assert later.token_expiry_time == kept["expires_at"]
    assert str(later.oauth_metadata.token_endpoint) == "https://as.example/t"
    found = asyncio.run(file.get_client_info())
    assert found is not None and found.client_id == "mine" and asyncio.run(file.get_tokens()) == token
    asyncio.run(file.set_tokens(OAuthToken(access_token="access")))
    assert read_tokens(file.path)["expires_at"] is None


@pytest.mark.parametrize(("secret", "method"), [("pass", "client_secret_basic"), ("", "none")])
def test_a_client_of_the_table_goes_before_a_registered_one(secret: str, method: str, tmp_path: Path) -> None:
    """With its secret where it has one, and for the server that issued it."""
    file = file_of(tmp_path, client_id="mine", client_secret=secret, issuer="https://as.example")
    found: Any = asyncio.run(file.get_client_info())
    assert (found.client_id, found.client_secret, found.token_endpoint_auth_method) == (
        "mine",
        secret or None,
        method,
    )
    assert str(found.redirect_uris[0]) == file.redirect


@pytest.mark.parametrize("content", ["{", "[1]", '"x"', ""])
def test_a_file_that_cannot_be_read_leads_to_another_login(content: str, tmp_path: Path) -> None:
    """It holds nothing."""
    (tmp_path / "tokens").write_text(content)
    assert read_tokens(tmp_path / "tokens") == read_tokens(tmp_path / "none") == {}


def test_no_token_is_left_in_an_answer(tmp_path: Path) -> None:
    """Those of the access, of the refresh and of the client; words that are too short to be one stay."""
    file = file_of(tmp_path)
    env = {"XDG_CONFIG_HOME": str(tmp_path)}
    said = "access-token-1 refresh-token-2 client-secret-3 short"
    assert token_redactor(file.config, env).text(said) == said
    asyncio.run(file.set_tokens(OAuthToken(access_token="access-token-1", refresh_token="refresh-token-2")))
    asyncio.run(
        file.set_client_info(
            OAuthClientInformationFull(client_id="short", client_secret="client-secret-3", redirect_uris=None)
        )
    )
    shown = token_redactor(file.config, env).text(said)
    assert shown.endswith(" short") and not any(word in shown for word in said.split()[:3])
    asyncio.run(file.set_tokens(OAuthToken(access_token="short")))
    assert token_redactor(file.config, env).text("short client-secret-3").startswith("short ")


def login_of(folder: Path, person: Any = None, **oauth: Any) -> Any:
    """What authenticates the requests to a server with this login; `person` returns whom it asks."""
    return provider_of(file_of(folder, **oauth).config, {"XDG_CONFIG_HOME": str(folder)}, person)


def test_a_login_keeps_the_address_that_it_was_registered_with(tmp_path: Path) -> None:
    """The port of the table, else that of the registration, else any that is free."""

    def address(folder: Path, **oauth: Any) -> str:
        return str(login_of(folder, **oauth).context.client_metadata.redirect_uris[0])

    assert address(tmp_path, port=4321) == "http://127.0.0.1:4321/callback"
    free = address(tmp_path)
    assert 1024 < (urllib.parse.urlsplit(free).port or 0) < 65536
    file = file_of(tmp_path)
    asyncio.run(file.set_tokens(OAuthToken(access_token="access")))
    assert address(tmp_path) == "http://127.0.0.1:7/callback"


def browser(redirect: str, **query: str) -> tuple[int, str]:
    """What a browser gets that is sent back with this."""
    address = f"{redirect}?{urllib.parse.urlencode(query)}"
    try:
        with urllib.request.urlopen(address, timeout=PATIENCE_S) as page:
            return page.status, page.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def logged_in(
    tmp_path: Path, *visits: dict[str, str], said: str = DONE, url: str = "https://as.example/a?state=secret"
) -> Any:
    """What comes of a login in which a browser comes back with these; and what it was shown."""
    pages: list[tuple[int, str]] = []
    asked: list[str] = []

    whom: list[Person] = []
    provider = login_of(tmp_path, lambda: whom[0])
    redirect = str(provider.context.client_metadata.redirect_uris[0])

    async def ask(text: str, options: tuple[str, ...]) -> str:
        asked.append(text)
        assert options == (DONE, DECLINE)
        for visit in visits:
            path = visit.pop("path", "")
            pages.append(await asyncio.to_thread(browser, redirect + path, **visit))
        if said == "nobody can say any more":
            raise asyncio.CancelledError
        return said

    async def go() -> Any:
        async with asyncio.timeout(None) as clock:
            whom.append(Person(ask, clock, PATIENCE_S))
            try:
                await provider.context.redirect_handler(url)
                return await provider.context.callback_handler()
            except (ConnectionError, asyncio.CancelledError) as error:
                with pytest.raises(ConnectionRefusedError):  # nobody listens any more
                    socket.create_connection(
                        ("127.0.0.1", urllib.parse.urlsplit(redirect).port or 0), timeout=PATIENCE_S
                    )
                return error

    return asyncio.run(go()), pages, asked


def test_a_login_is_taken_from_whoever_knows_its_secret(tmp_path: Path) -> None:
    """Other pages and other paths are told that nobody waits for them; a second answer changes nothing."""
    good = {"code": "c1", "state": "secret", "iss": "https://as.example"}
    found, pages, (asked,) = logged_in(
        tmp_path,
        {"code": "x", "state": "guessed"},
        {"code": "x"},
        {**good, "path": "/more"},
        good,
        {**good, "code": "c2"},
    )
    assert (found.code, found.state, found.iss) == ("c1", "secret", "https://as.example")
    assert [code for code, _ in pages] == [404, 404, 404, 200, 200]
    assert "does not wait for this" in pages[0][1] and "You can close this page" in pages[3][1]
    assert (
        asked == f"g ({URL}) wants a login. Open this address in a browser, log in there, then answer "
        "here:\nhttps://as.example/a?state=secret"
    )


def test_a_login_that_is_refused_says_why(tmp_path: Path) -> None:
    """By the server, by the person, or because its page is none that is opened."""
    refused, _, _ = logged_in(
        tmp_path, {"error": "access_denied", "error_description": "not you", "state": "secret"}
    )
    assert str(refused) == "the login was refused: access_denied: not you"
    declined, _, _ = logged_in(tmp_path, said=DECLINE)
    assert isinstance(declined, ConnectionError)
    assert str(declined) == "it wants a login, and nobody is here to log in: kestrel mcp login g"
    cancelled, _, _ = logged_in(tmp_path, said="nobody can say any more")
    assert isinstance(cancelled, asyncio.CancelledError)
    strange, _, asked = logged_in(tmp_path, url="file:///etc/passwd?state=secret")
    assert (str(strange), asked) == (
        "the server's login page has an address that is not opened: file:///etc/passwd?state=secret",
        [],
    )


def test_a_login_is_not_waited_for_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who said that it is done and never was there is told."""
    monkeypatch.setattr(authorization, "LOGIN_S", 0.05)
    late, _, _ = logged_in(tmp_path)
    assert isinstance(late, ConnectionError) and "kestrel mcp login g" in str(late)


@pytest.mark.parametrize(
    ("oauth", "kind"),
    [
        ({}, "OAuthClientProvider"),
        (
            {
                "client_credentials": True,
                "client_id": "c",
                "client_secret": "s",
                "issuer": "https://as.example",
            },
            "ClientCredentialsOAuthProvider",
        ),
        (
            {
                "client_credentials": True,
                "client_id": "c",
                "private_key": "k",
                "issuer": "https://as.example",
            },
            "PrivateKeyJWTOAuthProvider",
        ),
        (
            {"id_token": "t", "client_id": "c", "client_secret": "s", "issuer": "https://as.example"},
            "IdentityAssertionOAuthProvider",
        ),
    ],
)
def test_each_login_has_its_way(oauth: dict[str, Any], kind: str, tmp_path: Path) -> None:
    """A person in a browser, a program with a secret or a key, a token of a company."""
    assert type(login_of(tmp_path, **oauth)).__name__ == kind


def test_a_token_file_is_json_that_a_person_can_read(tmp_path: Path) -> None:
    """Who looks into it sees which server it is of."""
    file = file_of(tmp_path)
    asyncio.run(file.set_tokens(OAuthToken(access_token="access")))
    assert json.loads(file.path.read_text())["tokens"] == {"access_token": "access", "token_type": "Bearer"}
