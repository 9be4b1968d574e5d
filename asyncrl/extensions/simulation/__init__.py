"""A cluster on a virtual clock: the real ledger, rollout loop and router; engines, tools and trainers only take time.

workload   what episodes are like      ─┐
costs      how long work takes          ├─> cluster ──> outcome: throughput, idle time and its cause, staleness
layout     how many engines, ranks      ─┘
"""
