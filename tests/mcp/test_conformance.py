"""Claims about the protocol: its own published conformance suite passes, as a client and as a server, but for
what is named here.

`make test-long` installs the suite and Node beside it. What is left out is in docs/howto/mcp.md too.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from waits import PATIENCE_S

pytestmark = pytest.mark.long

HERE = Path(__file__).parent
NODE = Path(sys.prefix) / "bin" / "node"
SUITE = (
    Path(sys.prefix)
    / "conformance"
    / "node_modules"
    / "@modelcontextprotocol"
    / "conformance"
    / "dist"
    / "index.js"
)
REVISION = "2026-07-28"
AT_ONCE = 2

CLIENT = {
    *(
        "initialize",
        "tools_call",
        "elicitation-sep1034-client-defaults",
        "sse-retry",
        "request-metadata",
        "sep-2322-client-request-state",
    ),
    *("http-standard-headers", "http-custom-headers", "http-invalid-tool-headers"),
    *("json-schema-ref-no-deref", "json-schema-2020-12-preservation"),
    *(f"auth/metadata-{one}" for one in ("default", "var1", "var2", "var3", "issuer-mismatch")),
    *(
        "auth/basic-cimd",
        "auth/pre-registration",
        "auth/resource-mismatch",
        "auth/authorization-server-migration",
    ),
    *(
        f"auth/scope-{one}"
        for one in (
            "from-www-authenticate",
            "from-scopes-supported",
            "omitted-when-undefined",
            "step-up",
            "retry-limit",
        )
    ),
    *(f"auth/token-endpoint-auth-{one}" for one in ("basic", "post", "none")),
    *("auth/2025-03-26-oauth-metadata-backcompat", "auth/2025-03-26-oauth-endpoint-fallback"),
    *("auth/offline-access-scope", "auth/offline-access-not-supported"),
    *(
        f"auth/iss-{one}"
        for one in (
            "supported",
            "not-advertised",
            "supported-missing",
            "wrong-issuer",
            "unexpected",
            "normalized",
        )
    ),
    *(
        "auth/client-credentials-jwt",
        "auth/client-credentials-basic",
        "auth/enterprise-managed-authorization",
    ),
}
"""Each scenario of the revisions, and of the extensions those for programs that log in by themselves and for
companies' logins.
"""
NOT_SPOKEN = {
    "auth/dpop": "an extension that the SDK does not have",
    "auth/dpop-nonce": "an extension that the SDK does not have",
    "auth/wif-jwt-bearer": "an extension that the SDK does not have",
    **dict.fromkeys(
        (
            f"sep-2640-client-{one}"
            for one in ("no-prefetch", "verify-digest", "verify-size", "verify-frontmatter")
        ),
        "an extension: skills of servers",
    ),
}

TIMED = {"sse-retry"}
"""The suite warns of a client that comes back 0.2 s late, as it may on a busy machine."""

SERVER = {
    *(
        "server-initialize",
        "server-session-lifecycle",
        "ping",
        "dns-rebinding-protection",
        "http-header-validation",
        "server-sse-multiple-streams",
    ),
    *(
        "tools-list",
        "tools-call-simple-text",
        "tools-call-image",
        "tools-call-error",
        "tools-call-with-progress",
        "json-schema-2020-12",
    ),
}
IN_PART = {
    "server-stateless": (2, "two checks call a tool that samples; tools here ask no model of the client"),
    "caching": (3, "three checks are about prompts and resources, which are not offered"),
}
"""Scenarios of which some checks are about what is not offered: how many, and why."""
NOT_OFFERED = re.compile(
    r"(?:resources|prompts|tasks|completion|logging|elicitation|sep-2640-skills|input-required-result)-.*|sep-2164-resource-not-found"
    r"|tools-call-(?:audio|embedded-resource|mixed-content|with-logging|sampling|elicitation)"
    r"|server-sse-polling|http-custom-header-server-validation"
)
"""Kestrel serves tools that answer with text, JSON and images, and asks its client nothing."""


def suite(*words: str) -> subprocess.CompletedProcess[str]:
    """Run the suite."""
    return subprocess.run(
        [NODE, SUITE, *words], capture_output=True, text=True, timeout=3 * PATIENCE_S, check=False
    )


def listed(kind: str) -> dict[str, str]:
    """The scenarios that the installed suite has, each with its revisions."""
    return dict(re.findall(r"- (\S+) \[([^\]]*)\]", suite("list", f"--{kind}").stdout))


@pytest.fixture(scope="module", autouse=True)
def _installed() -> None:
    if not (SUITE.exists() and NODE.exists()):
        pytest.skip(
            "the conformance suite is not installed: make test-long installs it into the virtual "
            "environment, with Node"
        )


@pytest.fixture(scope="module")
def runs() -> Iterator[dict[str, Future[subprocess.CompletedProcess[str]]]]:
    """The runs of the client's scenarios, a few at a time: at the revision of 2026-07-28 where a scenario has
    it.
    """
    command = f"{sys.executable} {HERE / 'conformance_client.py'}"
    pool, known = ThreadPoolExecutor(AT_ONCE), listed("client")

    def run(name: str) -> subprocess.CompletedProcess[str]:
        version = ("--spec-version", REVISION) if REVISION in known.get(name, "") else ()
        return suite(
            "client",
            "--command",
            command,
            "--scenario",
            name,
            "--timeout",
            f"{PATIENCE_S * 1000:.0f}",
            *version,
        )

    yield {name: pool.submit(run, name) for name in sorted(CLIENT)}
    pool.shutdown(cancel_futures=True)


def test_every_scenario_of_the_suite_is_accounted_for() -> None:
    """A scenario that a newer suite brings is in one of the lists above, or this is red."""
    assert set(listed("client")) == CLIENT | NOT_SPOKEN.keys()
    assert not {
        name
        for name in listed("server")
        if not (name in SERVER or name in IN_PART or NOT_OFFERED.fullmatch(name))
    }


@pytest.mark.parametrize("name", sorted(CLIENT))
def test_the_client_passes(name: str, runs: dict[str, "Future[subprocess.CompletedProcess[str]]"]) -> None:
    """A scenario passes with the client that runs use: every check of it, and the client ends well."""
    done = runs[name].result()
    said = done.stdout + done.stderr
    found = re.search(r"Passed: (\d+)/(\d+), (\d+) failed, (\d+) warnings", said)
    assert found is not None, said
    good, of, bad, warned = map(int, found.groups())
    assert (bad, "CLIENT EXITED WITH ERROR" in said, "timed out" in said) == (0, False, False), said
    assert good + warned >= of > 0 and (warned == 0 or name in TIMED), said


def test_the_server_passes_what_concerns_it(tmp_path: Path) -> None:
    """`kestrel mcp serve --http` passes every scenario about tools and the transport, at each revision; the
    rest is not offered.
    """
    environment = {**os.environ, "XDG_CONFIG_HOME": str(tmp_path / "config")}
    command = [sys.executable, HERE / "conformance_server.py", tmp_path / "home"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as program:
        try:
            assert program.stdout is not None
            url = program.stdout.readline().strip()
            for version in ((), ("--spec-version", "2025-11-25"), ("--spec-version", REVISION)):
                done = suite(
                    "server",
                    "--url",
                    url,
                    "--suite",
                    "all",
                    "--timeout",
                    f"{PATIENCE_S * 1000:.0f}",
                    *version,
                )
                found = {
                    name: (int(good), int(bad))
                    for name, good, bad in re.findall(r"[✓✗] (\S+): (\d+) passed, (\d+) failed", done.stdout)
                }
                assert len(found) > 20, done.stdout + done.stderr
                failed = {
                    name: bad for name, (_, bad) in found.items() if bad and not NOT_OFFERED.fullmatch(name)
                }
                assert failed == {name: number for name, (number, _) in IN_PART.items() if name in found}, (
                    done.stdout
                )
                assert all(found[name][0] for name in SERVER & found.keys())
                assert version or found.keys() >= SERVER
        finally:
            program.terminate()
