"""What may be reached: addresses and URLs, as hostile as they come."""

import asyncio
from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kestrel_lab.tools.web.fetch import Reach
from kestrel_lab.tools.web.urls import Url, address_refusal, join_url, read_url

BAD = (
    *(
        "0.0.0.0",
        "10.1.2.3",
        "100.64.0.1",
        "100.100.100.200",
        "127.0.0.1",
        "127.255.255.254",
        "169.254.169.254",
        "172.16.0.1",
    ),
    *(
        "172.31.255.255",
        "192.0.0.170",
        "192.0.2.1",
        "192.88.99.1",
        "192.168.1.1",
        "198.18.0.1",
        "198.51.100.7",
        "203.0.113.9",
    ),
    *("224.0.0.1", "239.255.255.250", "240.0.0.1", "255.255.255.255", "168.63.129.16"),
    *(
        "::",
        "::1",
        "::ffff:127.0.0.1",
        "::ffff:169.254.169.254",
        "::127.0.0.1",
        "64:ff9b::7f00:1",
        "64:ff9b:1::a00:1",
        "100::1",
    ),
    *(
        "2001::1",
        "2001:0:4136:e378:8000:63bf:3fff:fdd2",
        "2001:db8::1",
        "2002:7f00:1::",
        "2002:a9fe:a9fe::1",
        "3fff::1",
    ),
    *("fc00::1", "fd00:ec2::254", "fe80::1", "fe80::1%eth0", "fec0::1", "ff02::1", "5f00::1", "4000::1"),
)
GOOD = (
    "1.1.1.1",
    "8.8.8.8",
    "93.184.216.34",
    "172.15.255.255",
    "172.32.0.1",
    "2606:4700:4700::1111",
    "2a00:1450:4001:82f::200e",
)


def test_every_address_that_is_not_of_the_public_internet_is_refused() -> None:
    """Private, link-local, metadata, multicast, documentation, and each way to hide IPv4 in IPv6."""
    assert {text for text in BAD if not address_refusal(text)} == set()
    assert {text: address_refusal(text) for text in GOOD} == dict.fromkeys(GOOD, "")
    assert address_refusal("169.254.169.254") == "is link-local, not a public address"
    assert address_refusal("example.org") == "is not a numeric address"


def test_what_python_calls_global_would_not_do() -> None:
    """The mutant: trusting `is_global` alone lets some of the bad addresses through, so the table can
    tell.
    """
    assert [text for text in BAD if ip_address(text.partition("%")[0]).is_global] != []


@given(st.integers(0, 2**32 - 1))
def test_ipv4_hidden_in_ipv6_is_no_way_around(number: int) -> None:
    """A mapped address is judged as what it maps; Teredo, 6to4 and NAT64 are refused whatever they hide."""
    plain = IPv4Address(number)
    assert bool(address_refusal(f"::ffff:{plain}")) == bool(address_refusal(str(plain)))
    for network in (0x2002 << 112 | number << 80, 0x64FF9B << 96 | number, 0x20010000 << 96 | number):
        assert address_refusal(str(IPv6Address(network)))


@given(st.ip_addresses())
def test_nothing_is_reached_that_python_calls_private(address: IPv4Address | IPv6Address) -> None:
    """Never more generous than the library."""
    assert address_refusal(str(address)) or address.is_global


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("file:///etc/passwd", "must begin with https://"),
        ("gopher://example.org/", "must begin with"),
        ("example.org", "must begin with"),
        ("http:/example.org", "must begin with"),
        ("http://", "no valid host"),
        ("http:///path", "no valid host"),
        ("http://user@example.org/", "user name or password"),
        ("http://example.org@127.0.0.1/", "user name or password"),
        ("http://a:b@example.org/", "user name or password"),
        ("http://example.org\\@127.0.0.1/", "contains"),
        ("http:\\\\example.org", "contains"),
        ("http://example.org\n.evil.test/", "contains"),
        ("http://exa mple.org/", "contains"),
        ("http://example.org/\r\nX-Evil: 1", "contains"),
        ("http://example.org\0.test/", "contains"),
        ("http://example.org%00.test/", "percent sign"),
        ("http://%31%32%37.0.0.1/", "percent sign"),
        ("http://127.1/", "only to some"),
        ("http://2130706433/", "only to some"),
        ("http://0x7f000001/", "only to some"),
        ("http://0x7f.1/", "only to some"),
        ("http://0177.0.0.1/", "only to some"),
        ("http://127.0.0.1.0x/", "only to some"),
        ("http://1.2.3.4.5/", "only to some"),
        ("http://[::1/", "no valid host"),
        ("http://[fe80::1%25eth0]/", "no valid host"),
        ("http://[1::2::3]/", "not an IPv6 address"),
        ("http://::1/", "no valid host"),
        ("http://example.org:0/", "no valid host"),
        ("http://example.org:99999/", "no valid host"),
        ("http://example.org:80:80/", "no valid host"),
        ("http://-a.example.org/", "not a valid host name"),
        ("http://a..b/", "not a valid host name"),
        ("http://" + "a" * 9_000, "longer than"),
        ("http://" + "a" * 70 + ".org", "not a valid host name"),
        ("http://exa\u2028mple.org/", "contains"),
    ],
)
def test_a_url_with_two_meanings_has_none(text: str, message: str) -> None:
    """Whatever parsers disagree about is refused before anything is looked up."""
    with pytest.raises(ValueError, match=message):
        read_url(text)


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("HTTP://Example.ORG.", "http://example.org/"),
        ("https://example.org:443/a%20b?q=ä#frag", "https://example.org/a%20b?q=%C3%A4"),
        ("http://example.org?x=1", "http://example.org/?x=1"),
        ("http://bücher.example/", "http://xn--bcher-kva.example/"),
        ("http://[2606:4700:0:0::1111]:80/", "http://[2606:4700::1111]/"),
        ("http://１２７.0.0.1/", "http://127.0.0.1/"),
        ("http://a_b.example.org:8080/x", "http://a_b.example.org:8080/x"),
    ],
)
def test_a_url_has_one_spelling(text: str, url: str) -> None:
    """Case, default ports, international names and fragments are settled once; digits of other scripts are
    digits.
    """
    assert str(read_url(text)) == url
    assert str(read_url(url)) == url


@given(st.text(max_size=40).map("http://".__add__) | st.text(max_size=60))
def test_what_is_accepted_is_stable_and_printable(text: str) -> None:
    """Reading the printed form gives the same, in plain ASCII without blanks; anything else is a
    `ValueError`.
    """
    try:
        url = read_url(text)
    except ValueError:
        return
    assert read_url(str(url)) == url
    assert str(url).isascii()
    assert str(url).isprintable()
    assert not set(url.host) & set("/\\@% ")


def test_links_are_read_as_strictly() -> None:
    """Relative ones lead on from where they stand, others are refused like any URL."""
    base = Url("https", "example.org", 443, "/a/b?c")
    assert [str(join_url(base, text)) for text in ("d", "/d", "?e", "//other.org/x")] == [
        *(
            "https://example.org/a/d",
            "https://example.org/d",
            "https://example.org/a/b?e",
            "https://other.org/x",
        )
    ]
    for text in ("javascript:alert(1)", "//user@other.org", "data:text/html,x"):
        with pytest.raises(ValueError, match=r"must begin|user name"):
            join_url(base, text)


@pytest.mark.parametrize(
    ("env", "url", "proxy"),
    [
        ({}, "https://example.org/", ""),
        ({"HTTPS_PROXY": "http://p:3128"}, "https://example.org/", "http://p:3128"),
        ({"https_proxy": "p:3128"}, "https://example.org/", "http://p:3128"),
        ({"HTTPS_PROXY": "http://p:3128"}, "http://example.org/", ""),
        ({"ALL_PROXY": "http://p"}, "http://example.org/", "http://p"),
        ({"ALL_PROXY": "http://p", "NO_PROXY": "other.org, .example.org"}, "http://www.example.org/", ""),
        ({"ALL_PROXY": "http://p", "NO_PROXY": "ample.org"}, "http://example.org/", "http://p"),
        ({"ALL_PROXY": "http://p", "NO_PROXY": "example.org:8080"}, "http://example.org/", "http://p"),
        ({"ALL_PROXY": "http://p", "NO_PROXY": "*"}, "http://example.org/", ""),
    ],
)
def test_the_environment_names_the_proxy(env: dict[str, str], url: str, proxy: str) -> None:
    """As other programs read these variables."""
    assert Reach(env=env).proxy(read_url(url)) == proxy


def test_a_proxy_of_another_kind_is_refused() -> None:
    """Going around it silently would tell the wrong party."""
    with pytest.raises(ValueError, match="not an HTTP proxy"):
        Reach(env={"ALL_PROXY": "socks5://p:1080"}).proxy(read_url("https://example.org/"))


def test_one_bad_address_among_good_ones_is_enough() -> None:
    """All answers of the resolver have to be public: an attacker could have the next connection go to the
    other.
    """

    async def resolve(_host: str, _port: int) -> list[str]:
        return ["93.184.216.34", "10.0.0.1"]

    with pytest.raises(PermissionError, match=r"evil\.test \(10\.0\.0\.1\) was not asked: it is private"):
        asyncio.run(Reach(resolve=resolve).addresses("evil.test", 80))
