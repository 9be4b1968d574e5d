#!/bin/bash
cd "$(dirname "$0")" || exit 1
for file in $(ls etc/*.conf); do
    cp $file backup/
done
