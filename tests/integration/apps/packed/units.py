def metres(n: int) -> int:
    return 1000 * n
