"""What a gateway tells Prometheus of its episodes."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from asyncrl.extensions.agents.gateway.open_episodes import Episodes


class EpisodeMetrics:
    """Exports the sums over ended episodes to Prometheus."""

    def __init__(self, episodes: Episodes) -> None:
        self.episodes = episodes

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily("asyncrl_gateway_open_episodes", "episodes open", value=len(self.episodes))
        names = ("opened", "ended", "expired", "calls", "sampled_tokens", "context_tokens", "cached_tokens")
        checks = ("rendered_turns", "retokenized_tokens", "undelivered_calls", "infrastructure_errors")
        for name in (*names, *checks):
            value = self.episodes.counters[name]
            yield CounterMetricFamily(f"asyncrl_gateway_{name}", f"{name} of ended episodes", value=value)
