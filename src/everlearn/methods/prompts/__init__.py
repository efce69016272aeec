"""Methods that add soft prompts."""
