"""The process of an engine: see engine.py. Answers go to stdout, all that vLLM says to stderr."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from typing import Any

import psutil


class Served:
    """A vLLM engine and what it may be told to do."""

    def __init__(self, model: str, options: dict[str, Any], keep_prefixes: bool) -> None:
        from vllm import LLM
        from vllm.config import KVEventsConfig

        if keep_prefixes:
            _keep_prefixes()
        if "kv_events_config" in options:
            options["kv_events_config"] = KVEventsConfig(**options["kv_events_config"])
        self._llm = LLM(model, disable_log_stats=False, **options)
        self._adapters: dict[str, int] = {}

    def generate(self, prompts: list[dict[str, Any]], tokens: int, together: bool) -> Any:
        from vllm import SamplingParams
        from vllm.inputs import TokensPrompt

        asked = []
        for one in prompts:
            prompt = TokensPrompt(prompt_token_ids=one["tokens"])
            if one["salt"] is not None:
                prompt["cache_salt"] = one["salt"]
            if one["images"]:
                prompt["multi_modal_data"] = {"image": [_image(**each) for each in one["images"]]}
                prompt["multi_modal_uuids"] = {"image": [each["name"] for each in one["images"]]}
            asked.append(prompt)
        adapters = [self._adapter(**one["adapter"]) if one["adapter"] else None for one in prompts]
        greedy = [
            SamplingParams(
                temperature=0,
                max_tokens=tokens,
                logprobs=0,
                ignore_eos=True,
                extra_args={"kv_transfer_params": one["transfer"]} if one["transfer"] else None,
            )
            for one in prompts
        ]
        before, outputs = self._counters(), []
        all_of_it = list(zip(asked, greedy, adapters, strict=True))
        for batch in [all_of_it] if together else [[one] for one in all_of_it]:
            texts, params, under = zip(*batch, strict=True)
            found = self._llm.generate(
                list(texts), list(params), use_tqdm=False, lora_request=list(under)
            )
            outputs += [self._told(one) for one in found]
        after = self._counters()
        return {"outputs": outputs, "counted": {k: v - before[k] for k, v in after.items()}}

    def _adapter(self, name: str, path: str, in_place: bool) -> Any:
        """vLLM's request of one; each name has a number of its own."""
        from vllm.lora.request import LoRARequest

        number = self._adapters.setdefault(name, len(self._adapters) + 1)
        return LoRARequest(name, number, path, load_inplace=in_place)

    def forget(self) -> Any:
        return self._llm.reset_prefix_cache()

    def reset(self) -> Any:
        return self._llm.reset_prefix_cache(reset_connector=True)

    def moved(self) -> dict[str, int]:
        """Moves by the kernels of a GPU, of each kind."""
        from tests.connectors.vllm.as_on_a_gpu import MOVES

        return dict(MOVES)

    def signal_at_load(self, pid: int, number: int, opened: bool) -> Any:
        """Signal a process at the first load from now on, when its blocks were found but not yet
        opened, or when they are opened but not yet copied; and go on once the signal has worked."""
        from kvstore.client import Client

        reader, waiting = Client.reader, [pid]

        def signalled(*args: Any, **options: Any) -> Any:
            made = reader(*args, **options) if opened else None
            if waiting:
                _signal(waiting.pop(), number)
            return made if opened else reader(*args, **options)

        Client.reader = signalled  # type: ignore[method-assign]
        return None

    def figures(self) -> dict[str, float]:
        """The connector's own figures, as vLLM's /metrics shows them: `name` or `name.reason`."""
        from prometheus_client import REGISTRY

        found: dict[str, float] = {}
        for family in REGISTRY.collect():
            for one in family.samples:
                if one.name.startswith("moonpool:") and "le" not in one.labels:
                    name = one.name.removeprefix("moonpool:").removesuffix("_total")
                    reason = one.labels.get("reason", "")
                    found[f"{name}.{reason}" if reason else name] = one.value
        return found

    def _counters(self) -> dict[str, int]:
        """vLLM's own counters, without the prefix of their names."""
        return {
            one.name.removeprefix("vllm:"): int(one.value)
            for one in self._llm.get_metrics()
            if type(one).__name__ == "Counter"
        }

    @staticmethod
    def _told(output: Any) -> dict[str, Any]:
        one = output.outputs[0]
        steps = zip(one.token_ids, one.logprobs or (), strict=False)
        return {
            "tokens": list(one.token_ids),
            "logprobs": [step[token].logprob for token, step in steps],
            "cached": output.num_cached_tokens or 0,
            "finish": str(one.finish_reason),
        }


def _image(seed: int, side: int, name: str | None) -> Any:
    """Random pixels, the same ones at every call."""
    import numpy as np
    from PIL import Image

    shape = (side, side, 3)
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8))


def _keep_prefixes() -> None:
    """vLLM's own prefix cache stays on where it would turn it off, as for MLA on most CPUs."""
    from vllm.platforms import current_platform

    platform = type(current_platform)
    checked = platform.check_and_update_config

    def kept(config: Any) -> None:
        checked(config)
        config.cache_config.enable_prefix_caching = True

    platform.check_and_update_config = staticmethod(kept)


def _signal(pid: int, number: int) -> None:
    os.kill(pid, number)
    wanted = psutil.STATUS_ZOMBIE if number == signal.SIGKILL else psutil.STATUS_STOPPED
    while psutil.Process(pid).status() != wanted:
        time.sleep(0.001)


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever is printed goes to the log
    served: Served | None = None
    for line in sys.stdin:
        told = json.loads(line)
        try:
            if served is None:
                served, answer = Served(**told), None
            else:
                answer = getattr(served, told.pop("do"))(**told)
            said = {"answer": answer}
        except Exception as error:  # the caller's side raises it
            traceback.print_exc()
            said = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(said), file=answers, flush=True)


if __name__ == "__main__":
    main()
