"""`python -m asyncrl` is the command `asyncrl`."""

from asyncrl.cli import main

raise SystemExit(main())
