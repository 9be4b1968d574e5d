"""Metrics that add up: a value is kept as a total and a count until everything has been summed.

Every function in `algo` returns `Metrics`. Micro-batches are joined with `merge`, data-parallel ranks with
`reduce_over_ranks`, and only then does `values` divide. So a reported mean is the mean over the whole step,
whatever the split.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Metric:
    """One scalar statistic. `kind` is "mean" (total / count), "max", "min" or "sum" (count unused)."""

    total: Tensor
    count: Tensor
    kind: str = "mean"


Metrics = dict[str, Metric]


def _scalar(x: Tensor | float) -> Tensor:
    return torch.as_tensor(x).detach().double()


def mean_over(x: Tensor, mask: Tensor | None = None) -> Metric:
    """Mean of `x` over the positions where `mask` holds (everywhere without a mask)."""
    mask = torch.ones_like(x, dtype=torch.bool) if mask is None else mask
    picked = torch.where(mask, x.detach().double(), 0.0)
    return Metric(picked.sum(), mask.sum().double())


def extreme_over(x: Tensor, mask: Tensor | None = None, kind: str = "max") -> Metric:
    """Largest ("max") or smallest ("min") masked value; absent values never win."""
    mask = torch.ones_like(x, dtype=torch.bool) if mask is None else mask
    absent = -torch.inf if kind == "max" else torch.inf
    # One value more, which never wins: there may be none.
    picked = F.pad(torch.where(mask, x.detach().double(), absent).flatten(), (0, 1), value=absent)
    total = picked.amax() if kind == "max" else picked.amin()
    return Metric(total, mask.sum().double(), kind)


def ratio_of(total: Tensor | float, count: Tensor | float) -> Metric:
    """A mean given as its own total and count."""
    return Metric(_scalar(total), _scalar(count))


def sum_of(total: Tensor | float) -> Metric:
    """A plain sum over micro-batches and ranks."""
    value = _scalar(total)
    return Metric(value, torch.ones_like(value), "sum")


def merge(parts: Iterable[Metrics]) -> Metrics:
    """Join the metrics of several micro-batches. A name may be missing from some of them."""
    merged: Metrics = {}
    for part in parts:
        for name, metric in part.items():
            known = merged.get(name)
            merged[name] = metric if known is None else _join(known, metric)
    return merged


def _join(a: Metric, b: Metric) -> Metric:
    if a.kind == "max":
        total = torch.maximum(a.total, b.total)
    elif a.kind == "min":
        total = torch.minimum(a.total, b.total)
    else:
        total = a.total + b.total
    return Metric(total, a.count + b.count, a.kind)


def reduce_over_ranks(metrics: Metrics, all_reduce: Callable[[Tensor, str], None]) -> Metrics:
    """Reduce over data-parallel ranks in two collectives.

    `all_reduce(tensor, op)` reduces in place with `op` "sum" or "max". Every rank must hold the same names;
    they are ordered by name here. Where any value is on a GPU, all are reduced there: plain numbers among them,
    counts of rows for one, are on the CPU.
    """
    if not metrics:
        return {}
    devices = {value.device for metric in metrics.values() for value in (metric.total, metric.count)}
    device = next((one for one in devices if one.type != "cpu"), torch.device("cpu"))
    metrics = {
        name: Metric(metric.total.to(device), metric.count.to(device), metric.kind)
        for name, metric in metrics.items()
    }
    names = sorted(metrics)
    extremes = [n for n in names if metrics[n].kind in ("max", "min")]
    sums = torch.stack([torch.stack([_summed(metrics[n]), metrics[n].count]) for n in names])
    all_reduce(sums, "sum")
    totals = {name: sums[i, 0] for i, name in enumerate(names)}
    if extremes:
        signs = [1.0 if metrics[n].kind == "max" else -1.0 for n in extremes]
        peaks = torch.stack([s * metrics[n].total for s, n in zip(signs, extremes, strict=True)])
        all_reduce(peaks, "max")
        totals |= {n: s * peaks[i] for i, (s, n) in enumerate(zip(signs, extremes, strict=True))}
    return {n: Metric(totals[n], sums[i, 1], metrics[n].kind) for i, n in enumerate(names)}


def to_plain(metrics: Metrics) -> dict[str, list[Any]]:
    """Metrics as what a message between ranks carries; `from_plain` takes it back."""
    return {name: [float(m.total), float(m.count), m.kind] for name, m in metrics.items()}


def from_plain(plain: dict[str, list[Any]]) -> Metrics:
    """Metrics that `to_plain` wrote."""
    return {
        name: Metric(_scalar(total), _scalar(count), kind) for name, (total, count, kind) in plain.items()
    }


def _summed(metric: Metric) -> Tensor:
    return metric.total if metric.kind in ("mean", "sum") else torch.zeros_like(metric.total)


def values(metrics: Metrics) -> dict[str, float]:
    """Plain numbers for a log. Names without any observation are left out."""
    found = {}
    for name, metric in metrics.items():
        count = float(metric.count)
        if count > 0:
            total = float(metric.total)
            found[name] = total / count if metric.kind == "mean" else total
    return found
