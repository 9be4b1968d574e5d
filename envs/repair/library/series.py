# mypy: ignore-errors
"""Lists of numbers."""


def median(values):
    """Return the middle of the sorted values, the mean of two for an even count."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    if len(ordered) % 2 == 1:
        return ordered[middle]
    return (ordered[middle - 1] + ordered[middle]) / 2


def moving_sum(values, width):
    """Return the sum of every `width` neighbours."""
    return [sum(values[i : i + width]) for i in range(len(values) - width + 1)]


def best_run(values):
    """Return the largest sum of neighbouring values, 0 for none."""
    best = 0
    current = 0
    for value in values:
        current = max(0, current + value)
        best = max(best, current)
    return best


def digits(number, base):
    """Return the digits of a number below base ** 12, most significant first."""
    found = []
    for _ in range(12):
        if number > 0 or not found:
            found.append(number % base)
            number = number // base
    return found[::-1]
