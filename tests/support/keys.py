"""The forms in which a server may send back a key, so that no one who looks for the key itself sees it."""

import base64
import html
import json
import textwrap
import urllib.parse


def forms(key: str) -> dict[str, str]:
    """The key in other forms, by what they are."""
    codes, middle = [ord(letter) for letter in key], len(key) // 2
    entities = "".join(f"&#{code};" for code in codes)
    percent = "".join(f"%{code:02X}" for code in codes)
    escapes = "".join(f"\\u{code:04x}" for code in codes)
    start, end = key[:middle], key[middle:]
    return {
        "as it is": key,
        "upper case": key.upper(),
        "quote": urllib.parse.quote(key),
        "quote all": urllib.parse.quote(key, safe=""),
        "quote plus": urllib.parse.quote_plus(key, safe="/"),
        "quote twice": urllib.parse.quote(urllib.parse.quote(key, safe=""), safe=""),
        "quote every letter": percent,
        "quote every letter twice": percent.replace("%", "%25"),
        "quote as JavaScript": "".join(f"%u{code:04x}" for code in codes),
        "php": json.dumps(key).replace("/", "\\/"),
        "escapes": escapes,
        "escapes twice": "".join(f"\\\\u{code:04X}" for code in codes),
        "escapes in JSON": json.dumps({"error": escapes}),
        "escapes in JSON in JSON": json.dumps(json.dumps({"error": escapes})),
        "escapes of bytes": "".join(f"\\x{code:02x}" for code in codes),
        "octal escapes": "".join(f"\\{code:03o}" for code in codes),
        "escapes in braces": "".join(f"\\u{{{code:x}}}" for code in codes),
        "code points": " ".join(f"U+{code:04X}" for code in codes),
        "entities": entities,
        "entities with zeros": "".join(f"&#{code:09};" for code in codes),
        "entities without ends": "".join(f"&#{code:07}" for code in codes),
        "hexadecimal entities": "".join(f"&#x{code:X};" for code in codes),
        "entities of entities": html.escape(entities),
        "entities of percents": percent.replace("%", "&#37;"),
        "some entities": key.replace("/", "&sol;").replace("=", "&#x3d;").replace("-", "&#45;"),
        "spaced": " ".join(key),
        "spaced by lines": "\r\n".join(key),
        "spaced entities": entities.replace(";", "; "),
        "spaced by entities": "&nbsp;".join(key),
        "dots": ".".join(key),
        "commas": ", ".join(key),
        "a list": json.dumps(list(key)),
        "line break": f"{start}\r\n  {end}",
        "line break in JSON": json.dumps(f"{start}\n{end}"),
        "invisible": f"{start}\u200b\u00ad{end}",
        "full width": "".join(chr(code + 0xFEE0) for code in codes),
        "hexadecimal": key.encode().hex(),
        "hexadecimal, spaced": key.encode().hex(" ").upper(),
        "hexadecimal, commas": ", ".join(map(hex, codes)),
        "numbers": str(codes),
        **{
            f"base64 {before!r}": base64.b64encode(f"{before}{key}".encode()).decode()
            for before in ("", "a", "Bearer ", "user:", "ab")
        },
        "urlsafe base64": base64.urlsafe_b64encode(f"Bearer {key}".encode()).decode(),
        "base64 in lines": "\n".join(textwrap.wrap(base64.b64encode(key.encode()).decode(), 8)),
        "base32": base64.b32encode(f"Bearer {key}".encode()).decode(),
    }


def spelt(text: str) -> str:
    """The letters and digits of a text, in lower case."""
    return "".join(letter for letter in text.lower() if letter.isascii() and letter.isalnum())
