"""The server of a customer's model. Rows of a dataset name it, so it must not get the user's key by itself."""

import logging
import os
import re
import urllib.parse
from functools import lru_cache

logger = logging.getLogger(__name__)

COLUMNS = ("user_url", "user_model")  # of a row, that say who plays the customer
NAMELESS = "write the name that `user_url` serves the model under"
KEY = "OPENAI_API_KEY"
DEFAULT = "https://api.openai.com/v1"  # whose key it is unless OPENAI_BASE_URL says otherwise
_PLAIN = re.compile(r"[A-Za-z0-9.:/_\[\]-]+")  # of an address that every client reads in the same way


def key_variable(url: str) -> str | None:
    """Return OPENAI_API_KEY, or None if the server at `url` must not have it.

    The key goes to the host of OPENAI_BASE_URL (by default OpenAI's own), and to those in WM_PLUGIN_KEY_URLS, separated by
    commas: same scheme, host and port.
    """
    named = [os.environ.get("OPENAI_BASE_URL") or DEFAULT, *os.environ.get("WM_PLUGIN_KEY_URLS", "").split(",")]
    host = _host(url)
    if host is not None and host in map(_host, named):
        return KEY
    if os.environ.get(KEY):
        _warn("an address that is not plain" if host is None else f"{host[0]}://{host[1]}:{host[2]}")
    return None


@lru_cache(maxsize=64)  # once for each
def _warn(address: str) -> None:
    logger.warning(
        "%s is not sent to %.200s, which a row of a dataset names; if that server may have it, add its address to "
        "WM_PLUGIN_KEY_URLS",
        KEY,
        address,
    )


def _host(url: str) -> tuple[str, str, int] | None:
    url = url.strip()
    if not _PLAIN.fullmatch(url):
        return None
    try:
        parts = urllib.parse.urlsplit(url)
        ports = {"http": 80, "https": 443}
        if parts.scheme not in ports or not parts.hostname:
            return None
        return parts.scheme, parts.hostname, parts.port or ports[parts.scheme]
    except ValueError:  # a port that is no number, a broken IPv6 address
        return None
