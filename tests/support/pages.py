"""Reads a page of ours as a browser would, and checks what all of them have in common."""

import re
from html.parser import HTMLParser

_VOID = {"meta", "br", "hr", "img", "link", "input", "circle", "line", "polyline", "polygon"}


class Page(HTMLParser):
    """A page, checked: closed elements, one heading, both colour schemes, fit for phones, and nothing that is loaded or run.

    Attributes:
        tags: the names of its elements, in order.
        attributes: those of all elements: (element, name, value).
        text: what a reader reads; of the style nothing.
        cells: the text of each cell of its tables.
    """

    def __init__(self, document: str, title: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.text = ""
        self.cells: list[str] = []
        self.styles = ""
        self._open: list[str] = []
        self.feed(document)
        self.close()
        assert not self._open
        assert self.tags.count("h1") == 1
        assert title in self.text
        assert not {"script", "img", "iframe", "link", "object", "embed", "base", "form"} & set(self.tags)
        for tag, name, value in self.attributes:
            assert not name.startswith("on"), (tag, name)
            assert name not in ("src", "xlink:href", "srcset", "action", "data"), (tag, name, value)
            if name == "href":  # only to a part of the page
                assert value[:1] == "#", (tag, value)
                assert any((one, of) == ("id", value[1:]) for _, one, of in self.attributes), value
        ids = [value for _, name, value in self.attributes if name == "id"]
        assert len(set(ids)) == len(ids)
        assert ("meta", "content", "width=device-width, initial-scale=1") in self.attributes
        assert ("meta", "content", "light dark") in self.attributes
        assert any("default-src 'none'" in value for _, _, value in self.attributes)
        assert "prefers-color-scheme: dark" in self.styles
        assert "color-scheme: light dark" in self.styles
        assert not re.search(r"@import|url\(|http", self.styles)
        assert "overflow-wrap: anywhere" in self.styles  # no word is wider than a phone
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", document)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in _VOID:
            self._open.append(tag)
        if tag == "td":
            self.cells.append("")

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        if "style" in self._open:
            self.styles += data
            return
        self.text += data
        if "td" in self._open:
            self.cells[-1] += data
