"""Each alert, by a pool's series that Prometheus' own tool plays to it: what wakes somebody, what
waits until the morning, and what is said of a pool that is well."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.deploy.files import DEPLOY

HEALTHY = {
    f'up{{job="{job}",instance="{one}"}}': "1"
    for job in ("node", "conductor", "gateway")
    for one in "ab"
}
HEALTHY |= {f'moonpool_followed_nodes{{instance="{one}"}}': "2" for one in "ab"}
HEALTHY |= {f'moonpool_reporting_engines{{instance="{one}"}}': "4" for one in "ab"}
HEALTHY |= {f'moonpool_task_failures_total{{instance="{one}"}}': "0" for one in "ab"}
HEALTHY |= {f'moonpool_certificate_left_seconds{{instance="{one}"}}': "3000000" for one in "ab"}
HEALTHY |= {
    f'moonpool_{way}_failures_total{{instance="{one}"}}': "0"
    for way in ("probe", "ucx")
    for one in "ab"
}
HEALTHY |= {f'moonpool_ssd_failures_total{{instance="{one}"}}': "0" for one in "ab"}
UP = 'up{{job="{}",instance="{}"}}'

Firing = Callable[..., None]


@pytest.fixture
def firing(tmp_path: Path) -> Firing:
    """Asserts which alerts a pool fires that is well but for what is changed in its series; those
    that are None are not there."""
    if shutil.which("promtool") is None:
        pytest.skip("no promtool here: apt-get install prometheus")

    def played(changed: Mapping[str, str | None], at: str, *expected: str) -> None:
        series = {**HEALTHY, **changed}
        inputs = [
            {"series": name, "values": value if " " in value else f"{value}+0x600"}
            for name, value in series.items()
            if value is not None
        ]
        asked = {
            "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
            "eval_time": at,
            "exp_samples": [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in expected],
        }
        test = {"interval": "30s", "input_series": inputs, "promql_expr_test": [asked]}
        rules = str(DEPLOY / "prometheus" / "alerts.yml")
        file = tmp_path / "played.yml"  # JSON is YAML
        file.write_text(
            json.dumps({"rule_files": [rules], "evaluation_interval": "30s", "tests": [test]})
        )
        ran = subprocess.run(
            ["promtool", "test", "rules", file], capture_output=True, text=True, timeout=60
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr

    return played


def test_nothing_is_said_of_a_pool_that_is_well(firing: Firing) -> None:
    firing({}, "2h")


@pytest.mark.parametrize("job", ["gateway", "conductor"])
def test_one_of_two_that_is_down_wakes_nobody(firing: Firing, job: str) -> None:
    firing({UP.format(job, "a"): "0"}, "4m")
    firing({UP.format(job, "a"): "0"}, "10m", f"Moonpool{job.title()}Down")


@pytest.mark.parametrize("job", ["gateway", "conductor"])
def test_the_last_that_is_down_wakes_somebody(firing: Firing, job: str) -> None:
    firing({UP.format(job, one): "0" for one in "ab"}, "3m", f"MoonpoolNo{job.title()}")


@pytest.mark.parametrize("job", ["gateway", "conductor"])
def test_so_does_that_none_is_to_be_found(firing: Firing, job: str) -> None:
    """Of pods that are gone there is no `up` at all."""
    firing({UP.format(job, one): None for one in "ab"}, "3m", f"MoonpoolNo{job.title()}")


def test_a_disk_that_is_retired_is_told_of_until_its_node_starts_again(firing: Firing) -> None:
    name = 'moonpool_ssd_failures_total{instance="a"}'
    for failed in ("0 1+0x600", "1"):  # while it was looked at, and before the first look
        firing({name: failed}, "10m", "MoonpoolDiskRetired")
        firing({name: failed}, "4h", "MoonpoolDiskRetired")
    firing({name: "0 1 1 0+0x600"}, "10m")


def test_a_certificate_that_nobody_renewed_is_told_of_a_week_before_its_end(
    firing: Firing,
) -> None:
    name, week = 'moonpool_certificate_left_seconds{instance="a"}', 7 * 86_400
    ends = f"{week + 3_600} {week + 3_570}-30x600"  # a sample each 30 s
    firing({name: ends}, "30m")
    firing({name: ends}, "80m", "MoonpoolCertificateEnds")
    firing({name: "0 -30-30x600"}, "30m", "MoonpoolCertificateEnds")


def test_a_bug_that_a_node_goes_on_after_is_told_of_for_an_hour(firing: Firing) -> None:
    name = 'moonpool_task_failures_total{instance="a"}'
    firing({name: "0x10 1+0x600"}, "30m", "MoonpoolBug")
    firing({name: "0x10 1+0x600"}, "80m")


def test_requests_that_fail_are_told_of_where_none_has_ever_run(firing: Firing) -> None:
    failed = 'moonpool_failed_requests_total{instance="a"}'
    ran = 'moonpool_prompts_total{instance="a",miss="absent"}'
    firing({failed: "0 0+3x600"}, "30m", "MoonpoolRequestsFail")
    firing({failed: "0 0+3x600", ran: "0 0+200x600"}, "30m", "MoonpoolRequestsFail")
    firing({failed: "0 0+1x600", ran: "0 0+200x600"}, "30m")
    firing({failed: "0"}, "30m")


def test_requests_that_fail_before_vllm_are_told_of_by_the_gateways(firing: Firing) -> None:
    """Its engines have no series of ours."""
    failed, whole = (
        f'moonpool_requests_total{{instance="a",answer="{one}"}}' for one in ("failed", "whole")
    )
    firing({failed: "1 1+3x600", whole: "0 0+200x600"}, "30m", "MoonpoolRequestsFail")
    firing({failed: "1 1+1x600", whole: "0 0+200x600"}, "30m")
    firing({failed: "1 1+1x600"}, "30m", "MoonpoolRequestsFail")


@pytest.mark.parametrize("counter", ["probe_failures", "ucx_failures"])
def test_a_way_to_other_nodes_that_goes_on_failing_is_told_of_and_one_that_failed_once_is_not(
    firing: Firing, counter: str
) -> None:
    """Of a link that is kept, ucx is tried again and again, and is probed once."""
    name = f'moonpool_{counter}_total{{instance="a"}}'
    again = " ".join(f"{n}x9" for n in range(20))  # each 5 minutes
    firing({name: again}, "40m", "MoonpoolPeersUnreachable")
    firing({name: "0x10 1+0x600"}, "20m")
    firing({name: "0x10 1+0x600"}, "25m")
