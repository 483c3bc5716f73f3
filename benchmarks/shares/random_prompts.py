"""Prompts of which no two share a block."""

import random


def random_prompts(draw: random.Random, count: int, tokens: int) -> list[list[int]]:
    """So many prompts of so many token ids, which every model in use has."""
    return [[draw.randrange(1000, 20_000) for _ in range(tokens)] for _ in range(count)]
