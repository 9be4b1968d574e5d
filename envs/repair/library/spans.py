# mypy: ignore-errors
"""Spans of whole numbers, each a pair [start, end) with start < end."""


def clamp(value, low, high):
    """Return the value, or the bound it lies beyond."""
    if value < low:
        return low
    if value > high:
        return high
    return value


def merge(spans):
    """Return the spans sorted, those that touch or overlap joined."""
    merged = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([start, end])
    return merged


def gaps(spans, low, high):
    """Return the parts of [low, high) that no span covers. The spans are sorted and apart."""
    found = []
    position = low
    for start, end in spans:
        if start > position:
            found.append([position, min(start, high)])
        position = max(position, end)
    if position < high:
        found.append([position, high])
    return found


def overlap(first, second):
    """Return how many numbers two spans share."""
    return max(0, min(first[1], second[1]) - max(first[0], second[0]))
