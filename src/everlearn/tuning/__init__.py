"""Search for the learning rate and the strength of methods by short runs of a recipe: ``everlearn tune``.

``space.py`` defines the search space, ``pilot.py`` runs one short trial, ``search.py`` runs all of them and can be
killed at any time, ``choice.py`` says which to take, ``page.py`` shows it. Nothing here knows a method by name.
"""
