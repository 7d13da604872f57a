"""The `.git` of a repository with one commit, written without git: the same bytes on every machine."""

import hashlib
import struct
import zlib
from collections.abc import Mapping

_CONFIG = "[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = false\n[user]\n\tname = user\n\temail = user@box\n"
_FILE, _FOLDER = 0o100644, 0o40000


def history(files: Mapping[str, str], when: int, message: str) -> dict[str, str | bytes]:
    """Return the files of `.git` by their paths, for files by theirs.

    Args:
        when: the date of the commit, in seconds.
    """
    objects: dict[str, bytes] = {}

    def add(kind: str, content: bytes) -> bytes:
        whole = f"{kind} {len(content)}\0".encode() + content
        digest = hashlib.sha1(whole)
        objects[f".git/objects/{digest.hexdigest()[:2]}/{digest.hexdigest()[2:]}"] = zlib.compress(whole)
        return digest.digest()

    def tree(entries: Mapping[str, bytes]) -> bytes:
        folders: dict[str, dict[str, bytes]] = {}
        found = {}
        for path, blob in entries.items():
            name, _, rest = path.partition("/")
            if rest:
                folders.setdefault(name, {})[rest] = blob
            else:
                found[name] = _FILE, blob
        found |= {name: (_FOLDER, tree(inner)) for name, inner in folders.items()}
        in_order = sorted(found.items(), key=lambda one: one[0] + "/" * (one[1][0] == _FOLDER))
        return add("tree", b"".join(f"{mode:o} {name}\0".encode() + digest for name, (mode, digest) in in_order))

    blobs = {path: add("blob", text.encode()) for path, text in files.items()}
    who = f"user <user@box> {when} +0000"
    commit = add("commit", f"tree {tree(blobs).hex()}\nauthor {who}\ncommitter {who}\n\n{message}\n".encode()).hex()
    return {
        ".git/HEAD": "ref: refs/heads/main\n",
        ".git/config": _CONFIG,
        ".git/refs/heads/main": f"{commit}\n",
        ".git/index": _index(blobs),
        **objects,
    }


def _index(blobs: Mapping[str, bytes]) -> bytes:
    """The index, version 2. It says nothing of the files' dates, so that git looks at what is in them."""
    content = struct.pack(">4sLL", b"DIRC", 2, len(blobs))
    for path, blob in sorted(blobs.items()):
        entry = struct.pack(">10L20sH", *(0,) * 6, _FILE, *(0,) * 3, blob, len(path)) + path.encode()
        content += entry + bytes(8 - len(entry) % 8)
    return content + hashlib.sha1(content).digest()
