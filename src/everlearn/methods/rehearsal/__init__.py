"""Methods that train on old text again."""
