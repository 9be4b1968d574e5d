# mypy: ignore-errors
"""Rows of data: dictionaries with the same keys."""


def total_by(rows, key, value):
    """Return the sum of `value` for each `key`, in order of appearance, as pairs."""
    totals = {}
    for row in rows:
        totals[row[key]] = totals.get(row[key], 0) + row[value]
    return [[name, total] for name, total in totals.items()]


def top(rows, value, count):
    """Return the `count` rows with the highest value, the earlier of equals first."""
    return sorted(rows, key=lambda row: -row[value])[:count]


def page(rows, number, size):
    """Return page `number`, counted from 1, of `size` rows, and whether there is a further one."""
    start = (number - 1) * size
    return [rows[start : start + size], start + size < len(rows)]


def rank(scores):
    """Return each score's place: the highest is 1, equals share a place, the next place is skipped."""
    return [1 + sum(1 for other in scores if other > score) for score in scores]
