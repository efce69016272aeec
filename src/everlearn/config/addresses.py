"""Resolve the paths of a recipe: files and folders, `suite:` addresses, and ids of a hub."""

from __future__ import annotations

from everlearn.options import home


def located(text: str, key: str) -> str:
    """Resolve a path of a recipe.

    Args:
        text: a path, a ``suite:`` address or a hub id.
        key: the key of the recipe, for error messages.

    Returns:
        The absolute path of an existing file or folder; other texts, such as hub ids, unchanged.

    Raises:
        RecipeError: the address does not exist.
    """
    if text.startswith("suite:"):
        from everlearn.suites import locate

        return str(locate(text.removeprefix("suite:")))
    path = home(text, key)
    return str(path.resolve()) if text and path.exists() else text
