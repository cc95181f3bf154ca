from __future__ import annotations

import contextlib
import json
import subprocess
import sys

import pytest

from kvstore.errors import ConfigError, Invalid
from kvstore.planner import presets, whatif
from kvstore.planner.whatif import FIELDS, Choice, answer, choices, cluster_of, read


def test_what_is_left_out_is_as_it_usually_is() -> None:
    assert read({}) == {name: field.usual for name, field in FIELDS.items()}
    assert read({"rate": "2.5", "load": "agentic"})["rate"] == 2.5


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"rate": "0"}, "rate = '0': wants a number from 0.5 to 60"),
        ({"rate": "many"}, "rate = 'many'"),
        ({"rate": "nan"}, "rate = 'nan'"),
        ({"decode": "1e9"}, "decode = '1e9'"),
        ({"prefill": "2.5"}, "prefill = '2.5': wants a number from 1 to 32, in steps of 1"),
        ({"load": "none"}, "load = 'none': is one of bimodal"),
        ({"speed": "1"}, "'speed': there are load"),
    ],
)
def test_a_setting_that_cannot_be_is_refused_by_name(said: dict[str, str], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        read(said)


def test_every_field_can_be_set_to_its_ends() -> None:
    for name, field in FIELDS.items():
        ends = field.names if isinstance(field, Choice) else (str(field.least), str(field.most))
        for end in ends:
            read({name: end})
    assert choices().keys() == FIELDS.keys()


@pytest.mark.parametrize("model", presets.MODELS)
def test_every_model_that_can_be_chosen_fits_as_many_gpus_as_can_be_chosen(model: str) -> None:
    degrees = FIELDS["gpus"]
    assert isinstance(degrees, Choice)
    fitting = []
    for degree in degrees.names:
        with contextlib.suppress(Invalid):
            cluster_of(read({"model": model, "gpus": degree}))
            fitting.append(degree)
    assert fitting


def test_an_ssd_of_hosts_without_dram_is_refused_as_a_plan_of_it_is() -> None:
    with pytest.raises(ConfigError, match="ssd without dram"):
        cluster_of(read({"dram": "0", "ssd": "1024"}))


def test_more_engines_and_more_memory_serve_more_and_the_same_question_has_one_answer() -> None:
    few = read({"rate": "20", "prefill": "1", "decode": "1", "dram": "0", "load": "agentic"})
    small, again = answer(few), answer(few)
    large = answer(few | {"prefill": 8, "decode": 8, "dram": 512})
    assert small == again
    assert small["outcome"]["hits"]["local"] == 0 < large["outcome"]["hits"]["local"]
    assert small["outcome"]["share"] < large["outcome"]["share"]
    assert len(large["timeline"]["seconds"]) == len(large["timeline"]["queued"])


def test_asked_as_a_process_it_answers_in_json_and_refuses_by_one() -> None:
    command = [sys.executable, "-m", whatif.__name__]
    ran = subprocess.run(
        command, input='{"rate": "3"}', capture_output=True, text=True, timeout=200
    )
    assert ran.returncode == 0 and json.loads(ran.stdout) == json.loads(
        json.dumps(answer(read({"rate": "3"})))
    )
    refused = subprocess.run(
        command, input='{"rate": "0"}', capture_output=True, text=True, timeout=200
    )
    assert refused.returncode == 2 and "rate = '0'" in json.loads(refused.stdout)["error"]
