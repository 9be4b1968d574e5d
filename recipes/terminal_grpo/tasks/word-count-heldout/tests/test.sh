#!/bin/bash
mkdir -p /logs/verifier
share=0
[ "$(head -n 1 /app/top.txt)" = the ] && share=0.5
[ "$(tr '\n' ' ' </app/top.txt)" = "the cat mat " ] && share=1
printf '{"reward": %s}\n' "$share" >/logs/verifier/reward.json
