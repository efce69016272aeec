"""Content of the site besides the pages: navigation from index.md, all commands, the options of methods, all mistakes.

Everything is generated from its source, so it cannot become outdated.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from typing import Any
from unittest import mock

from sphinx import addnodes
from sphinx.application import Sphinx


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the hooks with Sphinx."""
    app.connect("source-read", _complete)
    app.connect("autodoc-process-docstring", _as_rest, priority=400)  # before napoleon, which is at 500
    app.connect("autodoc-process-docstring", _options)
    app.connect("autodoc-process-signature", _signature)
    app.connect("autodoc-skip-member", _skip)
    app.connect("html-page-context", _navigation_of_titles, priority=400)  # before the theme makes it
    return {"parallel_read_safe": True}


def _complete(app: Sphinx, page: str, source: list[str]) -> None:
    """Add generated content to a page before it is parsed."""
    pointer = re.fullmatch(r"# .+\n\n\[.+\]\((\.\./[A-Z]+\.md)\)\n", source[0])
    if pointer:  # a page that only points to a file beside the docs is that file
        text = (app.srcdir / pointer.group(1)).read_text(encoding="utf-8")
        source[0] = re.sub(r"\]\((?!https?:|#)", "](../", text)
    elif page == "mistakes" and (table := app.srcdir.parent / "build" / "mistakes.md").is_file():
        source[0] = table.read_text(encoding="utf-8")
    elif page == "index":
        source[0] += "".join(navigation(source[0]))
    elif page == "reference/commands":
        source[0] += "".join(commands())
    source[0] = re.sub(r"\]\(((?:\.\./)+[^)#\s]+\.md)(#[^)]*)?\)", lambda link: _outside(app, page, link), source[0])


def _outside(app: Sphinx, page: str, link: re.Match[str]) -> str:
    """Return a link to a page outside of docs: to the page in its place, or to the file itself."""
    target = (app.srcdir / page).parent.joinpath(link.group(1)).resolve()
    if target.is_relative_to(app.srcdir):
        return link.group()
    stands_for_it = app.srcdir / f"{target.stem.lower()}.md"
    here = target.parent == app.srcdir.parent and stands_for_it.exists()
    return f"](/{stands_for_it.name}{link.group(2) or ''})" if here else f"](path:{link.group(1)})"


def navigation(index: str) -> Iterator[str]:
    """Yield a table of contents for each section of the index, with the pages that it lists, in order."""
    for section in index.split("\n## ")[1:]:
        caption = section.splitlines()[0]
        pages = re.findall(r"^\* \[[^\]]+\]\((?!https?:)([^)#]+)\.md\)", section, re.MULTILINE)
        if pages:
            yield f"\n\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n" + "\n".join(pages) + "\n```\n"


def commands() -> Iterator[str]:
    """Yield a section for each command: its description, usage, arguments and options."""
    import typer
    import typer.main

    from everlearn import plugins
    from everlearn.cli import application

    with plugins.hidden():
        group = typer.main.get_command(application(all_options=True))
    root = typer.Context(group, info_name="everlearn")
    by_name = group.commands  # type: ignore[attr-defined]
    headings = list(dict.fromkeys(command.rich_help_panel for command in by_name.values()))
    heading = ""
    for verb, command in sorted(by_name.items(), key=lambda item: headings.index(item[1].rich_help_panel)):
        if command.rich_help_panel != heading:
            heading = command.rich_help_panel
            yield f"\n## {heading}\n"
        yield from _command(command, typer.Context(command, info_name=verb, parent=root), 3)


def _command(command: Any, context: Any, level: int) -> Iterator[str]:
    """Yield the section of a command, and those of the commands that it has itself."""
    import typer

    yield f"\n{'#' * level} `{context.command_path}`\n\n{(command.help or '').strip()}\n"
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    yield f"\n```\n{usage}\n```\n\n"
    for parameter in command.params:
        record = parameter.get_help_record(context)
        if record is not None and "--help" not in parameter.opts:
            yield f"* `{record[0].strip()}`: {_plain(record[1])}\n"
    for name, own in getattr(command, "commands", {}).items():
        if not own.hidden:
            yield from _command(own, typer.Context(own, info_name=name, parent=context), level + 1)


def _plain(text: str) -> str:
    """Return a help text without terminal markup, escaped for Markdown."""
    return " ".join(re.sub(r"\[(/?(?:bold|dim|italic|required)[^\]]*)\]", "", text).replace("*", r"\*").split())


def _as_rest(app: Sphinx, what: str, name: str, obj: Any, _: Any, lines: list[str]) -> None:
    """Convert Markdown in docstrings (fences, indented formulas, bars) to reStructuredText, which Sphinx reads."""
    text, fenced, base = [], False, ""
    for number, line in enumerate(lines):
        before = lines[number - 1] if number else ""
        if line.strip().startswith("```"):
            fenced = not fenced
            text += ["", f".. code-block:: {line.strip().strip('`') or 'text'}", ""] if fenced else [""]
        elif fenced:
            text.append(f"   {line}")
        elif line.startswith("    ") and not before.strip() and not base.startswith(" "):
            text += ["::", "", line]  # an indented block after a blank line is a formula or code
            base = ""
        else:
            text.append(_bars(line))
            base = line if line.strip() else base
    if what in ("attribute", "property", "data") and text:
        text[0] = f": {text[0]}"  # else what stands before a colon is taken for the type
    lines[:] = text


def _bars(text: str) -> str:
    """Bars of absolute values and of choices, which Sphinx would take for the name of a substitution."""
    return re.sub(r"(`+[^`]*`+)|\|", lambda match: match.group(1) or r"\|", text)


def _signature(app: Sphinx, what: str, name: str, obj: Any, *_: Any) -> tuple[str, None] | None:
    """Remove the options from the signature of a class, as they are listed below it."""
    from pydantic import BaseModel

    from everlearn.methods.base import REGISTRY

    return ("", None) if what == "class" and (issubclass(obj, BaseModel) or obj in REGISTRY.values()) else None


def _options(app: Sphinx, what: str, name: str, obj: Any, _: Any, lines: list[str]) -> None:
    """Under a method's docstring: its options, as `everlearn methods NAME` lists them, and its published settings."""
    from everlearn.commands.describe import describe
    from everlearn.commands.yaml_text import value_text
    from everlearn.methods.base import REGISTRY, VARIANTS

    if what != "class" or obj not in REGISTRY.values():
        return
    described = describe(obj.name)
    lines += ["", f"In a recipe: ``method: {obj.name}``" + (f" · `paper <{obj.paper}>`__" if obj.paper else "")]
    lines += ["", "Options, with their defaults:", ""] if described["options"] else [""]
    for option in described["options"]:
        default = "required" if option["required"] else value_text(option["default"])
        lines.append(_bars(f"* ``{option['name']}``, ``{default}`` ({option['type']}): {option['description']}"))
    lines.append("")
    published = []
    for variant in (variant for cls, variant in VARIANTS.values() if cls is obj):
        changed = ", ".join(f"``{key}: {value_text(value)}``" for key, value in variant.options.items())
        published.append(_bars(f"* ``{variant.name}``: {variant.description}" + (f" ({changed})" if changed else "")))
    lines += ["Published settings with names of their own:", "", *published, ""] if published else []


def _skip(app: Sphinx, what: str, name: str, obj: Any, skip: bool, options: Any) -> bool | None:
    """Fields that pydantic adds to every model say nothing about ours."""
    return True if name == "model_config" else None


def _navigation_of_titles(app: Sphinx, page: str, template: str, context: dict[str, Any], _: Any) -> None:
    """Make the navigation of titles alone, which is all that it shows.

    Sphinx copies all headings of all pages for each page, and then removes them: a sixth of the time of the site.
    """
    complete = context["toctree"]

    def toctree(**options: Any) -> str:
        with mock.patch.object(app.env, "tocs", _titles(app.env) if options.get("titles_only") else app.env.tocs):
            return str(complete(**options))

    context["toctree"] = toctree


@functools.lru_cache(maxsize=1)
def _titles(environment: Any) -> dict[str, Any]:
    """Return the table of contents of each page without its headings."""
    short = {page: toc.deepcopy() for page, toc in environment.tocs.items()}
    for item in (item for toc in short.values() for item in toc.children if len(item) > 1):
        if inside := list(item.findall(addnodes.toctree)):
            item[1][:] = inside
        else:
            item.pop(1)
    return short
