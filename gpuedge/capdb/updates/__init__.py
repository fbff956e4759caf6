"""Signed updates of the database by TUF: the client's side. Publishing is in ``tools/capdb``."""
