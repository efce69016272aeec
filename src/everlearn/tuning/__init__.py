"""Search for the learning rate and the strength of methods by short runs of a recipe: ``everlearn tune``.

``space.py`` says what is drawn, ``pilot.py`` makes one short run of it, ``search.py`` makes all of them and can be
killed at any time, ``choice.py`` says which to take, ``page.py`` shows it. Nothing here knows a method by name.
"""
