"""Runs lm-eval's checks of IFEval in a Python that has lm-eval; see `ifeval.py`, which starts it.

    PYTHON -I asyncrl/extensions/instruction_rewards/ifeval_checks.py

A request is `{"ids"}`, answered by `{"refused": {id: why}}`, or `{"prompt", "ids", "kwargs", "response"}`, answered by
`{"strict": [...], "loose": [...]}`: for each instruction whether the response follows it. This file imports nothing of
asyncrl.
"""

import json
import os
import sys
from typing import Any

# lm-eval's checks would try to download NLTK's data in the process of rank 0 when they are imported.
os.environ["LOCAL_RANK"] = "1"

NEED_SENTENCES = ("length_constraints:number_sentences", "change_case:capital_word_frequency")
"""They split text into sentences or words by NLTK's data `punkt_tab`."""


def main() -> None:
    out = os.fdopen(os.dup(1), "w")
    # What libraries print is no answer.
    os.dup2(2, 1)
    import langdetect
    import nltk
    from lm_eval.tasks.ifeval import instructions_registry, utils

    # Its guesses are random unless it is told otherwise.
    langdetect.DetectorFactory.seed = 0
    try:
        nltk.data.find("tokenizers/punkt_tab")
        has_sentences = True
    except LookupError:
        has_sentences = False

    def refused(instruction: str) -> str:
        if instruction not in instructions_registry.INSTRUCTION_DICT:
            return "lm-eval has no check of this name"
        if instruction in NEED_SENTENCES and not has_sentences:
            return "its check needs NLTK's data punkt_tab, which is not in any folder of NLTK_DATA"
        return ""

    print("ready", file=out, flush=True)
    for line in sys.stdin:
        asked: dict[str, Any] = json.loads(line)
        answer: dict[str, Any]
        if "response" in asked:
            example = utils.InputExample(0, asked["ids"], asked["prompt"], asked["kwargs"])
            strict = utils.test_instruction_following_strict(example, asked["response"])
            loose = utils.test_instruction_following_loose(example, asked["response"])
            answer = {
                "strict": [bool(one) for one in strict.follow_instruction_list],
                "loose": [bool(one) for one in loose.follow_instruction_list],
            }
        else:
            answer = {"refused": {one: why for one in asked["ids"] if (why := refused(one))}}
        print(json.dumps(answer), file=out, flush=True)


if __name__ == "__main__":
    main()
