"""How the documentation is made of the tree: which files are pages, what is generated, and what Markdown holds.

For `make docs` (through `docs/hooks.py`, which MkDocs calls) and for the tests in `tests/docs`.
"""
