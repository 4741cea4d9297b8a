"""The one exception a user meets: a sentence that says what is wrong, where, and what to do."""


class InputError(ValueError):
    """Input that cannot be used as given. The command line prints its text and exits with code 2."""
