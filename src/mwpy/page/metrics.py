"""The figures of a status for Prometheus, in its text format (https://prometheus.io/docs/instrumenting)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def text_of(status: Mapping[str, Any]) -> tuple[bytes, str]:
    """Return the figures, and the type of this content.

    Raises:
        ImportError: prometheus-client is not installed.
    """
    from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
    from prometheus_client.registry import Collector

    class Figures(Collector):
        """The figures of this status."""

        def collect(self) -> Iterator[Metric]:
            """Yield each kind of figure."""
            if "tasks" not in status:
                return
            tasks = GaugeMetricFamily("mwpy_tasks", "Tasks, by state.", labels=["state"])
            for state, count in status["tasks"].items():
                tasks.add_metric([state], count)
            yield tasks
            yield GaugeMetricFamily("mwpy_tasks_per_second", "Tasks that ended, over the last minute.", status["rate"])
            yield GaugeMetricFamily("mwpy_slaves_needed", "Slaves that are missing.", status["slaves_needed"])
            slaves = GaugeMetricFamily("mwpy_slaves", "Slaves, by host and state.", labels=["host", "state"])
            for host, row in status["hosts"].items():
                for state in ("starting", "idle", "busy", "leaving", "away"):
                    slaves.add_metric([host, state], row[state])
            yield slaves
            ended = CounterMetricFamily("mwpy_algorithm_tasks", "Tasks that ended.", labels=["algorithm", "end"])
            seconds = CounterMetricFamily("mwpy_algorithm_seconds", "How long they ran.", labels=["algorithm"])
            for name, row in status["algorithms"].items():
                ended.add_metric([name, "failed"], row["failed"])
                ended.add_metric([name, "succeeded"], row["finished"] - row["failed"])
                seconds.add_metric([name], row["seconds"])
            yield ended
            yield seconds
            failures = CounterMetricFamily("mwpy_failures", "Failed tasks, by kind.", labels=["kind"])
            for kind, count in status["failures"].items():
                failures.add_metric([kind], count)
            yield failures
            lost = CounterMetricFamily("mwpy_lost_attempts", "Lost attempts, by cause.", labels=["cause"])
            for cause, count in status["lost"].items():
                lost.add_metric([cause], count)
            yield lost

    return generate_latest(Figures()), CONTENT_TYPE_LATEST
