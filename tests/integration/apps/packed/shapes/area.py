from importlib import resources


def square(n: int) -> int:
    return n * n


def side() -> int:
    return int(resources.files("shapes").joinpath("side.txt").read_text())
