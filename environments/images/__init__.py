"""Images of tasks: found, pulled or built, once, with their progress as rows.

From:  environments.starting and `manage.py images` (ensure.py); a person's wish (wishes.py).
To:    an Image row and an image of this host's container engine.
"""
