"""The token of the run that all services of the tests belong to. Clients without another find it in the environment."""

from __future__ import annotations

import os

from asyncrl.credentials import VARIABLE, read_credentials

TOKEN = "the-token-of-all-tests"
os.environ[VARIABLE] = TOKEN
RUN = read_credentials(TOKEN)
AUTHORIZED = {"Authorization": f"Bearer {TOKEN}"}
JSON = AUTHORIZED | {"Content-Type": "application/json"}
PACKED = AUTHORIZED | {"Content-Type": "application/msgpack"}
"""Headers of requests that no client of ours sends."""
