import random

from asyncrl.env.protocol import Action, Env, Step


class GuessNumber(Env):
    blocking = False  # steps take microseconds: run them in place
    max_turns = 6

    def __init__(self, task, high: int = 20):
        super().__init__(task)
        self.secret, self.turns = random.Random(task.seed).randint(1, high), 0
        self.low, self.high = 1, high

    def reset(self):
        return [{"role": "user", "content": f"Guess a number from 1 to {self.high}."}]

    def step(self, action: Action) -> Step:
        self.turns += 1
        guess = int(action.content) if action.content.isdecimal() else 0
        if guess == self.secret:
            return Step(reward=1.0, done=True, success=True)
        if self.turns >= self.max_turns:
            return Step(done=True, success=False)
        hint = "a number, please" if guess == 0 else "higher" if guess < self.secret else "lower"
        self.low = guess + 1 if hint == "higher" else self.low
        self.high = guess - 1 if hint == "lower" else self.high
        return Step([{"role": "user", "content": hint}])

    def oracle(self, messages):  # with random_policy: what a base model made on the spot learns from
        return {"role": "assistant", "content": str((self.low + self.high) // 2)}

    def random_policy(self, messages, rng):
        return {"role": "assistant", "content": str(rng.randint(1, 20))}
