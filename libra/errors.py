"""What a user did wrong, in one line.

`UserError` is for input that a person can mend: a key, a file, a number. Programs print its message on
stderr and exit with status 2; everything else is a defect and shows its traceback.
"""


class UserError(Exception):
    """One line: the place, what is wrong there, and the mend."""
