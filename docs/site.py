"""What MkDocs makes of this repository: the site has its folders, so that a relative link is valid on both."""

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
PAGES = (
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "docs/*.md",
    "recipes/README.md",
    "patches/README.md",
    "benchmarks/results/*.md",
)
LINK = re.compile(r"\]\(([^)#\s:]+)")


def on_config(config: MkDocsConfig) -> None:
    """List the results in the navigation: a page each."""
    for section in config.nav or ():
        for name, pages in section.items():
            if pages == "benchmarks/results/*":
                section[name] = [
                    path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "benchmarks/results").glob("*.md"))
                ]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Take the repository's pages and the files that they link to, in place of the contents of `docs`."""
    pages = [path for pattern in PAGES for path in sorted(ROOT.glob(pattern))]
    linked = {(page.parent / target).resolve() for page in pages for target in LINK.findall(page.read_text())}
    found = [*pages, *sorted(path for path in linked - set(pages) if path.is_file())]
    kept = [file for file in files if file.src_dir != config.docs_dir]  # the theme's
    return Files(
        [*kept, *(File.generated(config, str(path.relative_to(ROOT)), abs_src_path=str(path)) for path in found)]
    )


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Put the docstrings below the tables of names in docs/api.md."""
    if page.file.src_uri == "docs/api.md":
        parts = re.split(r"(?m)^(?=## )", markdown)
        names = [re.findall(r"(?m)^\| `(wm_plugin\.[\w.]+)`", part) for part in parts]
        return "".join(
            part + "".join(f"\n::: {name}\n" for name in found) + "\n" for part, found in zip(parts, names, strict=True)
        )
    return markdown
