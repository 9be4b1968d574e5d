# mypy: ignore-errors
"""Grids: lists of rows of numbers."""


def transpose(grid):
    """Return the grid with rows and columns exchanged."""
    return [[row[i] for row in grid] for i in range(len(grid[0]))]


def neighbours(grid, row, column):
    """Return the values left, right, above and below of a cell, those that exist, in that order."""
    found = []
    for down, right in ((0, -1), (0, 1), (-1, 0), (1, 0)):
        r, c = row + down, column + right
        if 0 <= r < len(grid) and 0 <= c < len(grid[0]):
            found.append(grid[r][c])
    return found


def peaks(grid):
    """Return [row, column] of the cells that are larger than all their neighbours above, below, left and right."""
    found = []
    for r in range(len(grid)):
        for c in range(len(grid[0])):
            around = []
            if r > 0:
                around.append(grid[r - 1][c])
            if r < len(grid) - 1:
                around.append(grid[r + 1][c])
            if c > 0:
                around.append(grid[r][c - 1])
            if c < len(grid[0]) - 1:
                around.append(grid[r][c + 1])
            if all(grid[r][c] > value for value in around):
                found.append([r, c])
    return found


def diagonal_sum(grid):
    """Return the sum of both diagonals of a square grid, a shared middle counted once."""
    size = len(grid)
    total = 0
    for i in range(size):
        total += grid[i][i]
        if i != size - 1 - i:
            total += grid[i][size - 1 - i]
    return total
