"""The keys of a computation: one secret text, from which both CURVE key pairs are made."""

from __future__ import annotations

import hashlib
import secrets

import zmq
from msgspec import Struct
from zmq.utils import z85

__all__ = ["CurvePair", "member_keys", "new_key", "raw", "server_keys"]


class CurvePair(Struct, frozen=True):
    """A CURVE key pair, as Z85 text."""

    public: str
    secret: str


def new_key() -> str:
    """Return a new key of a computation."""
    return secrets.token_hex(32)


def server_keys(key: str) -> CurvePair:
    """Make the master's key pair."""
    return _derive("mwpy server", key)


def member_keys(key: str) -> CurvePair:
    """Make the key pair that all members share."""
    return _derive("mwpy member", key)


def _derive(purpose: str, key: str) -> CurvePair:
    secret = z85.encode(hashlib.sha256(f"{purpose}\0{key}".encode()).digest())
    return CurvePair(zmq.curve_public(secret).decode(), secret.decode())


def raw(key: str) -> bytes:
    """The 32 bytes of a key that is Z85 text."""
    return z85.decode(key)
