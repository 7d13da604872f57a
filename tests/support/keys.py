"""The forms in which a server may send back a key."""

import base64
import urllib.parse


def forms(key: str) -> dict[str, str]:
    """The key in these forms, by what they are."""
    return {
        "as it is": key,
        "upper case": key.upper(),
        "quote": urllib.parse.quote(key),
        "quote all": urllib.parse.quote(key, safe=""),
        "quote plus": urllib.parse.quote_plus(key),
        **{
            f"base64 {before!r}": base64.b64encode(f"{before}{key}".encode()).decode()
            for before in ("", "a", "Bearer ", "user:", "ab")
        },
        "urlsafe base64": base64.urlsafe_b64encode(f"Bearer {key}".encode()).decode(),
    }
