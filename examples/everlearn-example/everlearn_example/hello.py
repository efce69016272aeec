"""A command of its own."""


def command(name: str = "everlearn") -> None:
    """Greet."""
    print(f"Hello, {name}.")
