"""What the Engine service takes."""

from __future__ import annotations

import pytest

from kvstore.conductor.reports import _check as check_report
from kvstore.engine.service import _checked as check_id
from kvstore.errors import Invalid
from kvstore.limits import REQUEST_ID_BYTES_MAX
from kvstore.wire.v1 import conductor_pb2


def reported(request_id: str) -> None:
    """Raises `Invalid` where a conductor ends the stream by it."""
    accepted = conductor_pb2.ReportRequest.Accepted(request_id=request_id, tokens=1)
    check_report(conductor_pb2.ReportRequest(accepted=[accepted]), 4)


@pytest.mark.parametrize("request_id", ["r", "cmpl-1 try 2", "é", "x" * REQUEST_ID_BYTES_MAX])
def test_an_id_is_one_that_conductors_take(request_id: str) -> None:
    reported(check_id(request_id))


@pytest.mark.parametrize("request_id", ["", "a\nb", "é" * 200, "x" * (REQUEST_ID_BYTES_MAX + 1)])
def test_an_id_by_which_a_report_would_end_is_refused(request_id: str) -> None:
    with pytest.raises(Invalid):
        reported(request_id)
    with pytest.raises(Invalid, match="request_id must be"):
        check_id(request_id)
