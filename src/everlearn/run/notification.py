"""Send events of a run to a webhook or a command (`stop.notify`)."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

from everlearn.errors import RecipeError, first_line

SECONDS = 20.0
"""Timeout of a webhook or command."""
SCHEMES = ("http://", "https://")


def check(notify: str | tuple[str, ...], key: str = "stop.notify") -> None:
    """Check that a webhook has an address, and that a command exists.

    Args:
        notify: the webhook or the command.
        key: what the user set, for error messages.

    Raises:
        RecipeError: if not.
    """
    if not isinstance(notify, str):
        if not shutil.which(notify[0]):
            raise RecipeError(f"`{key}`: there is no command '{notify[0]}' here. Give its whole path.")
    elif notify.startswith("$") and notify[1:] not in os.environ:
        raise RecipeError(f"`{key}` is the environment variable {notify}, which is not set.")
    elif not _address(notify).startswith(SCHEMES):
        what = f"{notify} is" if notify.startswith("$") else f"'{notify}' is"
        raise RecipeError(
            f"`{key}`: {what} no address. Give an address that begins with https://, or a command as a list of words."
        )


def send(notify: str | tuple[str, ...], event: Mapping[str, Any]) -> str | None:
    """Send an event as JSON: in the body of a POST request, or on the standard input of a command.

    Args:
        notify: the address of a webhook; `$NAME` reads it from the environment. Or the words of a command.
        event: what happened; `text` is the sentence that chat programs show.

    Returns:
        None, or a sentence why it did not arrive. A run does not end because of that.
    """
    body = json.dumps(event).encode()
    try:
        if isinstance(notify, str):
            request = urllib.request.Request(_address(notify), body, {"Content-Type": "application/json"})
            with urllib.request.urlopen(request, timeout=SECONDS):
                return None
        process = subprocess.run(notify, input=body, capture_output=True, timeout=SECONDS)
        last = process.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        why = f"exit code {process.returncode}{f': {last}' if last else ''}" if process.returncode else None
    except (OSError, ValueError, http.client.HTTPException, subprocess.TimeoutExpired) as error:
        why = first_line(error)
    # The address may hold a secret, so it is not named.
    return why and f"Nobody was told of this: the notification failed ({why}). Training continues."


def _address(notify: str) -> str:
    return os.environ.get(notify[1:], "") if notify.startswith("$") else notify
