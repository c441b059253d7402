"""A hook of mkdocs: links of docs/ to the sources beside it lead to the project's address, TORCH_MTIA_URL.

Without an address they are text. In the repository the same links are relative, and work in an editor and on GitHub.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from typing import Any

_CODE_OR_LINK_OUT = re.compile(
    r"^ *```.*?^ *```|\[(?P<text>[^\]]*)\]\((?P<target>\.\./[^)\s]*)\)|`[^`\n]*`", re.DOTALL | re.MULTILINE
)


def on_page_markdown(markdown: str, page: Any, config: Mapping[str, Any], **_: object) -> str:
    """Returns the page with its links rewritten. mkdocs calls it, by this name, with these arguments."""
    folder = posixpath.join("docs", posixpath.dirname(page.file.src_uri))

    def rewritten(found: re.Match[str]) -> str:
        if found["target"] is None:
            return found[0]
        if not config["repo_url"]:
            return found["text"]
        path = posixpath.normpath(posixpath.join(folder, found["target"]))
        return f"[{found['text']}]({config['repo_url'].rstrip('/')}/blob/HEAD/{path})"

    return _CODE_OR_LINK_OUT.sub(rewritten, markdown)
