"""An MCP server with all that tests ask for: `python offering_server.py` on standard input and output, `…
guarded` over HTTP behind OAuth.
"""

import asyncio
import base64
import os
import signal
import sys
from contextlib import suppress
from typing import Annotated, Any, Literal

import uvicorn
from mcp.server.mcpserver import Context, Image, MCPServer
from mcp.server.mcpserver.resolve import Elicit, Resolve
from mcp_types import ElicitRequest, ElicitRequestURLParams, InputRequiredResult, ToolAnnotations
from pydantic import BaseModel, Field
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR4nGP4z8DwHwAFAAH/Wqs4ggAAAABJRU5ErkJggg=="
)
server = MCPServer("offering")


class Guests(BaseModel):
    """What is asked."""

    number: int = Field(description="How many come.", ge=1)
    where: Literal["inside", "outside"] = "outside"
    pets: bool = False


def how_many(ctx: Context) -> Elicit[Guests]:
    """The question."""
    return Elicit("Who comes to dinner?", Guests)


@server.tool()
def book(guests: Annotated[Guests, Resolve(how_many)]) -> str:
    """Book a table."""
    return f"{guests.number} {guests.where} {guests.pets}"


@server.tool()
def pay(ctx: Context) -> Any:
    """Pay on a page."""
    if not ctx.input_responses:
        page = ElicitRequestURLParams(message="Pay there", url="https://pay.example/7")
        return InputRequiredResult(input_requests={"page": ElicitRequest(params=page)})
    return f"the page: {ctx.input_responses['page'].action}"


class Weather(BaseModel):
    """A structured answer."""

    degrees: float
    sky: list[str]


@server.tool()
def weather() -> Weather:
    """Say the weather."""
    return Weather(degrees=21.5, sky=["blue", "wide"])


@server.tool()
def picture() -> Image:
    """Draw a pixel."""
    return Image(data=PIXEL, format="png")


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def words() -> str:
    """Say something."""
    return "just words"


@server.tool()
def headers(ctx: Context) -> str:
    """Say what was sent along."""
    return (ctx.headers or {}).get("authorization", "nothing")


@server.resource("notes://today", description="What is on today")
def today() -> str:
    """A resource."""
    return "feed the bird"


@server.resource("notes://{day}", description="What is on that day")
def day(day: str) -> str:
    """A template of resources."""
    return f"nothing on {day}"


@server.prompt()
def greet(name: str) -> str:
    """Greet somebody."""
    return f"Say hello to {name}."


def guarded(port: int, lives_s: int) -> Starlette:
    """The server behind a small authorisation server that gives tokens to everybody who asks as the protocol
    wants it.

    Its tokens are good for ever, and said to be good for `lives_s` seconds.
    """
    here = f"http://127.0.0.1:{port}"
    inner = server.streamable_http_app()
    valid: set[str] = set()
    told: list[str] = []
    forms: list[dict[str, str]] = []

    async def resource(_: Request) -> Response:
        return JSONResponse(
            {"resource": f"{here}/mcp", "authorization_servers": [f"{here}/as"], "scopes_supported": ["all"]}
        )

    async def metadata(_: Request) -> Response:
        places = {
            f"{what}_endpoint": f"{here}/as/{what}" for what in ("authorization", "token", "registration")
        }
        return JSONResponse(
            {
                "issuer": f"{here}/as",
                **places,
                "response_types_supported": ["code"],
                "code_challenge_methods_supported": ["S256"],
            }
        )

    async def register(request: Request) -> Response:
        told.append("registered")
        return JSONResponse({**await request.json(), "client_id": f"client{len(told)}"}, 201)

    async def authorize(request: Request) -> Response:
        told.append("authorized")
        asked = request.query_params
        return RedirectResponse(f"{asked['redirect_uri']}?code=c&state={asked['state']}")

    async def token(request: Request) -> Response:
        form = await request.form()
        told.append(str(form["grant_type"]))
        forms.append(
            {name: str(value) for name, value in form.items()}
            | {"authorization": request.headers.get("authorization", "")}
        )
        name = f"secret-token-{len(told)}"
        valid.add(name)
        return JSONResponse(
            {
                "access_token": name,
                "token_type": "Bearer",
                "expires_in": lives_s,
                "refresh_token": "again",
                "scope": "all",
            }
        )

    async def exchange(request: Request) -> Response:
        form = await request.form()
        forms.append({name: str(value) for name, value in form.items()})
        if form["subject_token"] != "of the company":
            return Response("who is that?", 403)
        issued = "urn:ietf:params:oauth:token-type:id-jag"
        return JSONResponse(
            {"access_token": "an assertion", "issued_token_type": issued, "token_type": "N_A"}
        )

    async def log(_: Request) -> Response:
        return JSONResponse(told)

    async def seen(_: Request) -> Response:
        return JSONResponse(forms)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["path"] == "/mcp":
            word = dict(scope["headers"]).get(b"authorization", b"").decode().removeprefix("Bearer ")
            if word not in valid:
                where = f'Bearer resource_metadata="{here}/.well-known/oauth-protected-resource/mcp"'
                await Response("", 401, {"WWW-Authenticate": where})(scope, receive, send)
                return
        await (inner if scope["type"] == "lifespan" or scope["path"] == "/mcp" else outer)(
            scope, receive, send
        )

    outer = Starlette(
        routes=[
            Route("/.well-known/oauth-protected-resource/mcp", resource),
            Route("/.well-known/oauth-authorization-server/as", metadata),
            Route("/as/registration", register, methods=["POST"]),
            Route("/as/authorization", authorize),
            Route("/as/token", token, methods=["POST"]),
            Route("/company/token", exchange, methods=["POST"]),
            Route("/log", log),
            Route("/forms", seen),
        ]
    )
    return app  # type: ignore[return-value]


def serve_guarded() -> None:
    """Start a process with a guarded server for each line `port lives_s`, and print its id; they end with
    this one's input.

    Each begins with what is imported here already: that takes thirty times as long as the rest of its start.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    started = []
    for line in sys.stdin:
        port, lives_s = map(int, line.split())
        if (child := os.fork()) == 0:
            sys.stdin.close()
            uvicorn.run(guarded(port, lives_s), port=port, log_level="warning")
            os._exit(0)
        started.append(child)
        print(child, flush=True)
    for child in started:
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)


if sys.argv[1:] == ["guarded"]:
    serve_guarded()
else:
    asyncio.run(server.run_stdio_async())
