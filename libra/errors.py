"""What went wrong, in one line: by what a user gave, or by what a policy did.

`UserError` is for input that a person can mend: a key, a file, a number; programs print its message on stderr and
exit with status 2. `PolicyError` is a defect of a policy, with status 1. Everything else is a defect of the program
and shows its traceback.
"""


class UserError(Exception):
    """One line: the place, what is wrong there, and the mend."""


class PolicyError(Exception):
    """One line: which policy failed, when, on which event, and what it raised where. Its cause is what was raised."""
