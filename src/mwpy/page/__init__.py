"""A live page of a master: what it does, what its slaves do, what failed, and why nothing moves."""

from mwpy.page.server import Page, serve

__all__ = ["Page", "serve"]
