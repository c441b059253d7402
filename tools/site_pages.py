"""Hooks of mkdocs: README.md is the site's first page, and links to sources lead to the project's address.

The address is TORCH_MTIA_URL; without it, such links are text. In the repository the same links are relative, and work
in an editor and on GitHub.
"""

from __future__ import annotations

import importlib
import posixpath
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_FIRST = "index.md"
_CODE_OR_LINK = re.compile(
    r"^ *```.*?^ *```|\[(?P<text>[^\]]*)\]\((?P<target>(?!#|[a-z]+:)[^)\s]+)\)|`(?:[^`\n]|\n(?!\n))*`",
    re.DOTALL | re.MULTILINE,
)


def on_files(files: Any, config: Any, **_: object) -> Any:
    """Returns the files with the first page. mkdocs calls the hooks by these names, with these arguments."""
    file_type = importlib.import_module("mkdocs.structure.files").File  # tests import this module without mkdocs
    readme = Path(config["config_file_path"]).parent / "README.md"
    files.append(file_type.generated(config, _FIRST, content=readme.read_text()))
    return files


def on_page_markdown(markdown: str, page: Any, config: Mapping[str, Any], **_: object) -> str:
    """Returns the page's text with its relative links rewritten."""
    place = posixpath.join("docs", page.file.src_uri)
    folder = "" if page.file.src_uri == _FIRST else posixpath.dirname(place)

    def rewritten(found: re.Match[str]) -> str:
        if found["target"] is None:
            return found[0]
        target, _, anchor = found["target"].partition("#")
        target = posixpath.normpath(posixpath.join(folder, target))
        if target == "README.md":
            target = posixpath.join("docs", _FIRST)
        if target.startswith("docs/"):
            target = posixpath.relpath(target, posixpath.dirname(place))
        elif config["repo_url"]:
            target = f"{config['repo_url'].rstrip('/')}/blob/HEAD/{target}"
        else:
            return found["text"]
        return f"[{found['text']}]({target}{'#' if anchor else ''}{anchor})"

    return _CODE_OR_LINK.sub(rewritten, markdown)
