#!/bin/bash
set -e
cd /app
ln -s "releases/$(ls releases | sort -V | tail -n 1)" current
ls releases | sort -V | head -n -2 | while read -r old; do rm -r "releases/$old"; done
