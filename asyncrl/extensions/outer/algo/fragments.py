"""Which parameters are exchanged together: consecutive ones, in fragments of about the same size.

Source: Streaming DiLoCo (arXiv 2501.18512), the sequential pattern; there a fragment is a number of whole layers, here
of whole parameters. Torch-free.
"""

from __future__ import annotations

from collections.abc import Mapping


def split_fragments(sizes: Mapping[str, int], count: int) -> list[list[str]]:
    """Return the names of `count` fragments, none empty, from the parameters' sizes in elements, in their order.

    Raises `ValueError` where there are fewer parameters than fragments.
    """
    if len(sizes) < count:
        raise ValueError(f"{len(sizes)} parameters cannot be divided into {count} fragments")
    found: list[list[str]] = [[]]
    left, held = sum(sizes.values()), 0
    for position, (name, size) in enumerate(sizes.items()):
        fragments_left = count - len(found)
        full = held > 0 and held + size / 2 > (left + held) / (fragments_left + 1)
        if fragments_left and found[-1] and (full or len(sizes) - position == fragments_left):
            found.append([])
            held = 0
        found[-1].append(name)
        held += size
        left -= size
    return found
