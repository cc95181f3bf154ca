"""The process of an engine: see engine.py. Answers go to stdout, and all that vLLM says to stderr."""

from __future__ import annotations

import json
import os
import sys
from typing import Any


class Served:
    """A vLLM engine and what it may be told to do."""

    def __init__(self, model: str, options: dict[str, Any]) -> None:
        from vllm import LLM

        self._llm = LLM(model, disable_log_stats=False, **options)

    def generate(self, prompts: list[dict[str, Any]], tokens: int, together: bool) -> Any:
        from vllm import SamplingParams
        from vllm.inputs import TokensPrompt

        asked = []
        for one in prompts:
            prompt = TokensPrompt(prompt_token_ids=one["tokens"])
            if one["salt"] is not None:
                prompt["cache_salt"] = one["salt"]
            asked.append(prompt)
        greedy = SamplingParams(temperature=0, max_tokens=tokens, logprobs=0, ignore_eos=True)
        before, outputs = self._counters(), []
        for batch in [asked] if together else [[one] for one in asked]:
            outputs += [
                self._told(one) for one in self._llm.generate(batch, greedy, use_tqdm=False)
            ]
        after = self._counters()
        return {"outputs": outputs, "counted": {k: v - before[k] for k, v in after.items()}}

    def forget(self) -> Any:
        return self._llm.reset_prefix_cache()

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
            said = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(said), file=answers, flush=True)


if __name__ == "__main__":
    main()
