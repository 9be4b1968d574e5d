"""Trains one policy by several ranks, as the server does, from the requests that a client sends and sends again.

python -m tests.extensions.tinker.ranks_run MODEL FOLDER RANKS TIMEOUT_S [SIGNAL RANK METHOD WHEN PASS]

With the last words, a rank gets SIGNAL when rank 0 is for the PASS-th time before or after METHOD of `TrainedAdapter`.
The last line of the output is JSON: the answers. The policy's states are in FOLDER. What the ranks tell and do after a
signal are those of the server, but for its watch over their processes.
"""

import json
import os
import signal
import sys
from pathlib import Path

from asyncrl.extensions.tinker.checkpoints import Checkpoints
from asyncrl.extensions.tinker.ledger import Ledger
from asyncrl.extensions.tinker.policies import TrainedAdapter
from asyncrl.extensions.tinker.rank_keeper import loaded_model
from asyncrl.extensions.tinker.rank_process import RankOptions
from asyncrl.extensions.tinker.ranks import LostRankError
from asyncrl.extensions.tinker.tables import (
    CREATE,
    FAILED,
    FORWARD_BACKWARD,
    OPTIM_STEP,
    PROTO,
    SAVE,
    Request,
)
from asyncrl.extensions.tinker.training import Training
from asyncrl.extensions.tinker.waiting import Answers
from tests.extensions.tinker.form import forward_backward, read_output, text_row
from tests.waiting import START_S

POLICY = "s:train:0"
TEXTS = ([5, 6, 7, 8, 9], [5, 9, 3, 3], [4, 4, 8, 2, 6, 7, 3, 9, 5], [7, 8], [3, 5, 3, 5, 4, 4], [9, 9, 2])


def rl_row(text, marked=1.0):
    count = len(text) - 1
    advantages, mask = [1.0 - 0.5 * place for place in range(count)], [marked] * count
    inputs = {"logprobs": [-5.0] * count, "advantages": advantages, "sequence_ratio_mask": mask}
    return text[:-1], {"target_tokens": text[1:], **inputs}


def rows(number, rows, *loss, **options):
    return Request(POLICY, number, FORWARD_BACKWARD, forward_backward(POLICY, number, rows, *loss, **options))


def of_policy(number, kind, **fields):
    return Request(
        POLICY, number, kind, json.dumps({"model_id": POLICY, "seq_id": number, **fields}).encode()
    )


def step(number):
    return of_policy(number, OPTIM_STEP, adam_params={"learning_rate": 0.01})


CREATED = {"session_id": "s", "model_seq_id": 0, "base_model": "tiny", "lora_config": {"rank": 4, "seed": 7}}
TEXT_ROWS = [text_row(text) for text in TEXTS]
# The longest row is rank 0's, the second longest, whose mask marks nothing, rank 1's.
WRONG = [rl_row(text, marked=float(text is not TEXTS[4])) for text in TEXTS]
SENT = (
    rows(1, TEXT_ROWS), rows(2, [rl_row(text) for text in TEXTS[2:]], "gspo"), step(3),
    rows(4, WRONG, "gspo"), rows(5, TEXT_ROWS, forward_only=True), rows(6, TEXT_ROWS[:1]), step(7),
    rows(8, TEXT_ROWS[1:]), step(9), rows(10, TEXT_ROWS, forward_only=True), of_policy(11, SAVE, path="end"),
)  # fmt: skip


def signalled(keeper, number, rank, method, when, wanted):
    """Have a method of rank 0 signal a rank."""
    whole, passes = getattr(TrainedAdapter, method), 0
    pid = keeper.processes[rank].pid if rank else os.getpid()

    def wrapped(self, *args, **named):
        nonlocal passes
        passes += 1
        is_now = passes == wanted
        if is_now and when == "before":
            os.kill(pid, number)
        found = whole(self, *args, **named)
        if is_now and when == "after":
            os.kill(pid, number)
        return found

    setattr(TrainedAdapter, method, wrapped)


def shown(request):
    if request.form == PROTO:
        logprobs, metrics = read_output(request.answer)
        return {"logprobs": [one.tolist() for one in logprobs], **metrics}
    return {**json.loads(request.answer), "failed": request.form == FAILED}


def play(model, folder, ranks, timeout_s, *kill):
    """Return the answers to what was sent."""
    options = RankOptions(model, "float32", 2**31, 64, int(ranks), float(timeout_s), 1, 4)
    with loaded_model(options, START_S) as (base, keeper):
        if kill:
            name, rank, method, when, wanted = kill
            signalled(keeper, getattr(signal, name), int(rank), method, when, int(wanted))
        ledger = Ledger(Path(folder))
        training = Training(base, Checkpoints(Path(folder), ledger), Answers(), "tiny", 8, 4)
        for request in (Request("s:create:0", 0, CREATE, json.dumps(CREATED).encode()), *SENT):
            if ledger.receive(request):
                training.submit(request)
            while (asked := training.queue.next()) is not None:
                training.carry_out(asked)
        answers = [shown(ledger.request(POLICY, one.number)) for one in SENT]
        ledger.close()
    return answers


if __name__ == "__main__":
    try:
        print(json.dumps(play(*sys.argv[1:])))
    except LostRankError as error:
        sys.exit(str(error))
