"""How Sphinx makes the documentation site of these pages: `make site`.

The pages stay plain Markdown that reads well where it lies; what only a site needs is added in `site_pages.py`.
Nothing is fetched, neither to build the site nor to read it: the theme brings its style and scripts, fonts are the
reader's own.
"""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "src")]

from everlearn.version import __version__  # noqa: E402

project = "everlearn"
author = "The everlearn developers"
copyright = "The everlearn developers, Apache-2.0"
version = release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "site_pages"]
source_suffix = {".md": "markdown"}
suppress_warnings = ["myst.header"]  # tables that scripts wrote begin at the third level
smartquotes_action = "D"  # dashes between a name and what it means; quotes stay as they are written

# Markdown as GitHub reads it: bare fences are text, headings have the same anchors.
myst_heading_anchors = 4
highlight_language = "text"

# Docstrings: Google style, `code` in single backticks, types where the signature has them.
default_role = "code"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_custom_sections = [("Class attributes", "attributes")]
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
maximum_signature_line_length = 100
add_module_names = False
toc_object_entries_show_parents = "hide"

html_theme = "furo"
html_title = f"everlearn {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
html_theme_options = {"navigation_with_keys": False, "footer_icons": []}
