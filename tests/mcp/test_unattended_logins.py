"""Logins without a person: a program's own credentials, a key, a token of a company, and a client that was
registered by hand.
"""

import asyncio
import base64
import json
import urllib.parse
import urllib.request
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from offered import Open
from waits import PATIENCE_S

from kestrel_lab.core.errors import DependencyError
from kestrel_lab.mcp.elicitation import DONE


def table(address: str, **oauth: Any) -> dict[str, Any]:
    """The table of the server, with what it is logged in with."""
    return {
        "url": f"{address}/mcp",
        "start_timeout_s": PATIENCE_S,
        "timeout_s": PATIENCE_S,
        "oauth": {"issuer": f"{address}/as", **oauth},
    }


def got(address: str, what: str) -> list[Any]:
    """What the authorisation server was sent: `log` has the grants, `forms` all of it."""
    return list(json.load(urllib.request.urlopen(f"{address}/{what}")))


def basic(form: dict[str, str]) -> str:
    """The client and its secret of a request."""
    return base64.b64decode(form["authorization"].removeprefix("Basic ")).decode()


def test_a_program_logs_in_with_its_secret(opened: Open, guarded: str) -> None:
    """Nobody is asked and nothing registered."""
    session = opened(g=table(guarded, client_credentials=True, client_id="me", client_secret="pass"))
    assert "words" in asyncio.run(session.mcp.check("g")).tools
    (form,) = got(guarded, "forms")
    assert (form["grant_type"], basic(form)) == ("client_credentials", "me:pass")
    assert got(guarded, "log") == ["client_credentials"]


def test_a_program_logs_in_with_its_key(opened: Open, guarded: str) -> None:
    """What it signs says who it is and for whom; the key itself stays here."""
    key = (
        ec.generate_private_key(ec.SECP256R1())
        .private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        .decode()
    )
    session = opened(g=table(guarded, client_credentials=True, client_id="me", private_key=key))
    assert "words" in asyncio.run(session.mcp.check("g")).tools
    (form,) = got(guarded, "forms")
    body = form["client_assertion"].split(".")[1]
    said = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    assert (form["grant_type"], said["iss"], said["sub"]) == ("client_credentials", "me", "me")
    assert "PRIVATE" not in json.dumps(form)


def test_a_token_of_the_company_is_exchanged(opened: Open, guarded: str) -> None:
    """First at the identity provider, for this server, then what it gave at the server's own; neither sees
    what is the other's.
    """
    how = {
        "id_endpoint": f"{guarded}/company/token",
        "id_client": "at the company",
        "client_id": "me",
        "client_secret": "pass",
    }
    session = opened(g=table(guarded, id_token="of the company", **how))
    assert "words" in asyncio.run(session.mcp.check("g")).tools
    exchanged, granted = got(guarded, "forms")
    assert (exchanged["subject_token"], exchanged["client_id"]) == ("of the company", "at the company")
    assert (exchanged["audience"], exchanged["resource"]) == (f"{guarded}/as", f"{guarded}/mcp")
    assert (granted["assertion"], basic(granted)) == ("an assertion", "me:pass")
    assert "of the company" not in granted.values() and "pass" not in exchanged.values()


def test_a_token_that_the_company_does_not_exchange_is_told(opened: Open, guarded: str) -> None:
    """With what the identity provider says; the server is asked for nothing then."""
    how = {
        "id_endpoint": f"{guarded}/company/token",
        "id_client": "c",
        "client_id": "me",
        "client_secret": "pass",
    }
    session = opened(g=table(guarded, id_token="of nobody", **how))
    with pytest.raises(DependencyError, match=r"does not exchange the id_token: 403 who is that\?"):
        asyncio.run(session.mcp.check("g"))
    assert got(guarded, "log") == []


@pytest.mark.parametrize("oauth", [{"client_secret": "pass"}, {}])
def test_a_client_that_was_registered_by_hand_is_used(
    opened: Open, guarded: str, oauth: dict[str, str]
) -> None:
    """A person logs in with it, no other is registered; with a secret it says so to the server that it
    belongs to.
    """

    async def logs_in(text: str, _: tuple[str, ...]) -> str:
        address = text.rsplit("\n", maxsplit=1)[-1]
        assert urllib.parse.parse_qs(urllib.parse.urlsplit(address).query)["client_id"] == ["mine"]
        await asyncio.to_thread(lambda: urllib.request.urlopen(address).read())
        return DONE

    session = opened(g=table(guarded, client_id="mine", **oauth))
    assert "words" in asyncio.run(session.mcp.login("g", logs_in)).tools
    assert got(guarded, "log") == ["authorized", "authorization_code"]
    (form,) = got(guarded, "forms")
    assert basic(form) == "mine:pass" if oauth else (form["client_id"], form["authorization"]) == ("mine", "")


def test_credentials_go_to_no_other_server_than_their_own(opened: Open, guarded: str) -> None:
    """A server that names another authorisation server than the table does is not logged in to."""
    other = table(
        guarded,
        client_credentials=True,
        client_id="me",
        client_secret="pass",
        issuer="https://issuer.example",
    )
    with pytest.raises(DependencyError):
        asyncio.run(opened(g=other).mcp.check("g"))
    assert got(guarded, "forms") == []
