"""Upload an exported folder to the Hugging Face hub, with errors that say what to do."""

from __future__ import annotations

from pathlib import Path

import huggingface_hub
from huggingface_hub import constants
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalTokenNotFoundError
from huggingface_hub.utils import validate_repo_id

from everlearn.errors import RunError, first_line


def check_hub(hub_id: str) -> None:
    """Check before the export whether its result could be uploaded.

    Raises:
        RunError: the name is invalid, the hub is disabled, or no user is logged in.
    """
    try:
        validate_repo_id(hub_id)
    except HFValidationError as error:
        raise RunError(f"`--push` is '{hub_id}', which is not a valid name on the hub: {error}") from None
    if "/" not in hub_id:
        raise RunError(f"`--push` is '{hub_id}'; it must name the owner too, as in owner/{hub_id}.")
    if constants.HF_HUB_OFFLINE:
        raise RunError("`--push` needs the hub, but HF_HUB_OFFLINE is set. Unset it, or push from another machine.")
    if not huggingface_hub.get_token():
        raise RunError("`--push` needs a token of the hub that may write: `hf auth login`, or set HF_TOKEN.")


def push(folder: Path, hub_id: str, *, public: bool = False) -> str:
    """Upload a folder as a model repository, which is created if it does not exist.

    Args:
        folder: an exported folder.
        hub_id: owner and name.
        public: whether a newly created repository is public; an existing one keeps its visibility.

    Returns:
        The URL of the uploaded model.

    Raises:
        RunError: the hub refuses the upload or cannot be reached; the folder is complete and can be uploaded later.
    """
    check_hub(hub_id)
    client = huggingface_hub.HfApi(library_name="everlearn")
    # The client's network library raises types of its own; all mean the same to the user.
    try:
        client.create_repo(hub_id, private=not public, exist_ok=True)
        done = client.upload_folder(repo_id=hub_id, folder_path=str(folder), commit_message="A stage of everlearn")
    except Exception as error:
        raise RunError(
            f"{folder} is exported but not on the hub: {_reason(error)} Push it with `hf upload {hub_id} {folder} .`."
        ) from None
    return str(getattr(done, "commit_url", done))


def _reason(error: Exception) -> str:
    status = getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(error, LocalTokenNotFoundError) or status == 401:
        return "no user is logged in, or the token is not valid (`hf auth login`, HF_TOKEN)."
    if status == 403:
        return "the token may not write there (its permissions, or the owner's name)."
    first = first_line(error).rstrip(".")
    return f"{first}." if isinstance(error, HfHubHTTPError) else f"the hub cannot be reached ({first})."
