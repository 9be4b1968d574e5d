#!/bin/bash
set -e
python3 - <<'END'
import csv
import json

ages = {}
with open("/app/data/people.csv") as file:
    for row in csv.DictReader(file):
        ages[row["name"]] = max(int(row["age"]), ages.get(row["name"], 0))
with open("/app/people.json", "w") as file:
    json.dump([{"name": name, "age": age} for name, age in sorted(ages.items())], file)
END
