"""Signed updates of the database by TUF: the client, the mirror it trusts, and the signing side."""
