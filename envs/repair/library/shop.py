# mypy: ignore-errors
"""Prices in cents."""


def discount(cents, percent):
    """Return the price after a discount, rounded down to a cent."""
    return cents - cents * percent // 100


def shipping(cents, weight, express):
    """Return the fee: free from 5000 cents on unless express, 400 up to weight 2, 100 more for each unit above."""
    if cents >= 5000 and not express:
        return 0
    fee = 400
    if weight > 2:
        fee += 100 * (weight - 2)
    if express:
        fee *= 2
    return fee


def change(cents, coins):
    """Return how many of each coin, largest first, a greedy cashier hands out."""
    counts = []
    for coin in coins:
        counts.append([coin, cents // coin])
        cents = cents % coin
    return [pair for pair in counts if pair[1] > 0]


def stock_after(stock, orders):
    """Return the stock when every order that can be met whole is met, and how many were not."""
    refused = 0
    for amount in orders:
        if amount <= stock:
            stock -= amount
        else:
            refused += 1
    return [stock, refused]
