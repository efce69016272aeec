"""Search for the learning rate and the strength of methods by short runs of a recipe: ``everlearn tune``.

``space.py`` defines the search space, ``pilot.py`` runs one short trial, ``search.py`` runs all of them and can be
killed at any time, ``page.py`` shows the results. Nothing here depends on the name of a method.
"""
