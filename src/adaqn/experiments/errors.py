"""Mistakes of a user, told in one line without a stack trace."""


class UserError(Exception):
    """Says what is wrong, what would be right, and what to do."""
