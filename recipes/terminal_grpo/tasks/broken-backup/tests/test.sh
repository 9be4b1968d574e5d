#!/bin/bash
# Run the repaired script on a fresh copy, and write the verdict where the harness reads it.
mkdir -p /logs/verifier /tmp/trial/etc
cp /app/backup.sh /tmp/trial/
printf 'a\n' >"/tmp/trial/etc/two words.conf"
printf 'b\n' >/tmp/trial/etc/one.conf
printf 'c\n' >/tmp/trial/etc/other.txt
bash /tmp/trial/backup.sh </dev/null
found=$(cd /tmp/trial/backup 2>/dev/null && ls | sort | tr '\n' '|')
if [ "$found" = "one.conf|two words.conf|" ]; then echo 1; else echo 0; fi >/logs/verifier/reward.txt
