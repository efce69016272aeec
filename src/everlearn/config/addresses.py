"""Where the paths of a recipe lead: files and folders, `suite:` addresses, and ids of a hub."""

from __future__ import annotations

from everlearn.options import home


def located(text: str, key: str) -> str:
    """Return where a path of a recipe leads.

    Args:
        text: a path, a ``suite:`` address or a hub id.
        key: that has it, for errors.

    Returns:
        The absolute path of what exists; a hub id, and what does not exist, as they are.

    Raises:
        RecipeError: the address leads nowhere.
    """
    if text.startswith("suite:"):
        from everlearn.suites import locate

        return str(locate(text.removeprefix("suite:")))
    path = home(text, key)
    return str(path.resolve()) if text and path.exists() else text
