"""The documentation as a site: `make docs` builds it with Sphinx, and `tilewright serve` offers it at /guide.

The site is served under a content policy without inline scripts and styles, so those of the theme become files.
"""

from __future__ import annotations

import hashlib
import re
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from sphinx.application import Sphinx

import tilewright

DOCS = Path(__file__).parent

project = "Tilewright"
version = release = tilewright.__version__
author = "the Tilewright developers"
root_doc = "index"
exclude_patterns = ["README.md"]
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_heading_anchors = 4
default_role = "code"
nitpicky = False  # types in signatures name modules that are no part of the reference

html_theme = "furo"
html_title = "Tilewright"
html_static_path: list[str] = []
html_favicon = "../service/dashboard/static/icon.svg"
html_show_copyright = False
html_copy_source = False
html_show_sourcelink = False
html_use_index = False
html_theme_options = {"top_of_page_buttons": []}
pygments_style = "default"

autodoc_mock_imports = ["pycuda", "torch", "triton"]
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
autodoc_default_options = {"members": True, "member-order": "bysource"}
suppress_warnings = ["misc.highlighting_failure"]

_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(((?:\.\./)+[^)\s]+)\)")
_INLINE = re.compile(r"<(script|style)>(.*?)</\1>", re.DOTALL)
_DRAWING = re.compile(r"url\((['\"])data:image/svg\+xml;charset=utf-8,(.*?)\1\)")
_STYLE = re.compile(r' style="([a-z]+): *([^";]+);?"')


def setup(app: Sphinx) -> None:
    """Registers what is done to sources and to finished pages."""
    app.connect("source-read", _without_links_to_the_repository)
    app.connect("include-read", lambda _app, path, _parent, text: _unlink(DOCS / path, text))
    app.connect("autodoc-process-docstring", _as_restructured_text)
    app.connect("build-finished", _without_inline_code)


def _as_restructured_text(*seen: Any) -> None:
    """Docstrings are written as Markdown; a bar would begin a substitution."""
    lines: list[str] = seen[-1]
    lines[:] = [line.replace("|", "\\|") for line in lines]


def _without_links_to_the_repository(_app: Sphinx, name: str, text: list[str]) -> None:
    _unlink(DOCS / f"{name}.md", text)


def _unlink(page: Path, text: list[str]) -> None:
    """Links to files outside of docs/ lead nowhere on a site, so their text stays alone."""

    def shown(link: re.Match[str]) -> str:
        target = (page.parent / link[2].partition("#")[0]).resolve()
        return link[0] if target.is_relative_to(DOCS) else link[1]

    text[0] = _LINK.sub(shown, text[0])


def _moved(out: Path, up: str, block: re.Match[str]) -> str:
    """A reference to the file that an inline script or style became."""
    kind = {"script": "js", "style": "css"}[block[1]]
    name = f"_static/{hashlib.sha256(block[2].encode()).hexdigest()[:12]}.{kind}"
    (out / name).write_text(block[2], encoding="utf-8")
    return f'<script src="{up}{name}"></script>' if kind == "js" else f'<link rel="stylesheet" href="{up}{name}">'


def _drawing(folder: Path, address: re.Match[str]) -> str:
    """A drawing within a style sheet as a file beside it."""
    text = unquote(address[2])
    name = f"{hashlib.sha256(text.encode()).hexdigest()[:12]}.svg"
    (folder / name).write_text(text, encoding="utf-8")
    return f"url({name})"


def _attribute(style: re.Match[str]) -> str:
    """A style of one property as an attribute; the theme has such only for drawings, and to hide something."""
    name, value = style[1], style[2].strip()
    return f' {name}="{value}"' + (" hidden" if (name, value) == ("display", "none") else "")


def _without_inline_code(app: Sphinx, error: Exception | None) -> None:
    """Moves inline scripts and styles of all pages to files, named by their content."""
    if error is not None or app.builder.format != "html":
        return
    out = Path(app.outdir)
    for sheet in out.rglob("*.css"):
        sheet.write_text(
            _DRAWING.sub(partial(_drawing, sheet.parent), sheet.read_text(encoding="utf-8")), encoding="utf-8"
        )
    for page in out.rglob("*.html"):
        up = "../" * (len(page.relative_to(out).parts) - 1)

        text = _INLINE.sub(partial(_moved, out, up), page.read_text(encoding="utf-8"))
        text = _STYLE.sub(_attribute, text)
        page.write_text(text, encoding="utf-8")
    for leftover in (".buildinfo", "objects.inv"):
        (out / leftover).unlink(missing_ok=True)
